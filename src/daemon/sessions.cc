// SPDX-License-Identifier: Apache-2.0
#include "daemon/sessions.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/kill_point.h"
#include "base/log.h"
#include "daemon/pid_view.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {
constexpr unsigned kMaxPerPid = 64;
constexpr int kAcceptsAtOnce = 64;
constexpr int kFramesAtOnce = 8;  // of one session in a turn of its user
constexpr Time kSilence = std::chrono::seconds(10);
constexpr Time kAcceptPause = std::chrono::milliseconds(200);
constexpr unsigned kLinesASecond = 5;

// A session may cost three descriptors (socket, page, pidfd): with a sixteenth
// each, five users can do their worst and the sixth still gets in.
size_t MaxPerStranger() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return std::max<size_t>(64, limit.rlim_cur / 16);
}
}  // namespace

Sessions::Sessions(Machine& machine, Tenants& tenants, Monitor& monitor, Reaper& reaper, CreditDesk& desk,
                   Reclaim& reclaim, HeldDescriptors& held, Leases& leases, FairTurns& turns, EventLoop& loop,
                   const Clock& clock)
    : machine_(machine),
      tenants_(tenants),
      monitor_(monitor),
      reaper_(reaper),
      desk_(desk),
      reclaim_(reclaim),
      held_(held),
      leases_(leases),
      turns_(turns),
      loop_(loop),
      clock_(clock),
      max_per_stranger_(MaxPerStranger()) {
  reclaim_.send = [this](uint64_t id, uint32_t ask, unsigned slot, uint64_t bytes) {
    return AskListener(id, ask, slot, bytes);
  };
  leases_.send_queued = [this](uint64_t id, const std::string& json) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) return false;
    const auto packet = ipc::EncodeText(GPUMUX_RUN_QUEUED, 0, json);
    if (!packet) return true;
    // A suspended terminal does not read: what it misses is sent again when it changes.
    const Status sent = it->second->socket.Send(*packet);
    return sent || sent.error().code == Code::kTimeout;
  };
  leases_.send_granted = [this](uint64_t id, const std::string& json, const std::vector<int>& fds) {
    const auto packet = ipc::EncodeText(GPUMUX_RUN_GRANTED, 0, json);
    return packet && Send(id, *packet, fds);
  };
  leases_.send_resumed = [this](uint64_t id) {
    const auto packet = ipc::EncodeText(GPUMUX_RUN_RESUMED, 0, "{}");
    return packet && Send(id, *packet);
  };
  leases_.send_summary = [this](uint64_t id, const std::string& json) {
    const auto packet = ipc::EncodeText(GPUMUX_RUN_SUMMARY, 0, json);
    Over(id);
    return packet && Send(id, *packet);
  };
  leases_.send_refused = [this](uint64_t id, const Error& error) {
    gpumux_refused refused{};
    // The exit code says most; the reason tells what does not fit now from what never may.
    refused.reason = error.code == Code::kInternal   ? GPUMUX_REASON_INTERNAL
                     : error.code == Code::kConflict ? GPUMUX_REASON_DEVICE_FULL
                                                     : GPUMUX_REASON_NONE;
    refused.exit_code = error.code == Code::kInternal ? 125 : ExitStatus(error.code);
    ipc::SetField(refused.text, error.ToString());
    Over(id);
    Send(id, ipc::EncodeStruct(GPUMUX_REFUSED, 0, refused));
  };
}

Sessions::~Sessions() = default;

void Sessions::Listen(ipc::UnixListener listener) {
  listen_watch_ = {};
  listener_ = std::move(listener);
  listen_watch_ = loop_.OnReadable(listener_.fd(), [this] { Accept(); });
}

void Sessions::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto fd = listener_.Accept();
    if (!fd) {
      LogError("session socket: {}", fd.error().ToString());
      return PauseAccepting();
    }
    if (!fd->valid()) return;
    const auto peer = ipc::PeerOf(fd->get());
    if (!peer) continue;
    if (!MayConnect(*peer)) {
      ++dropped_;
      continue;
    }
    auto session = std::make_unique<Session>();
    const uint64_t id = session->id = next_id_++;
    session->peer = *peer;
    if (peer->pid > 0) session->peer_process = NameProcess(peer->pid);
    session->since = clock_.Now();
    session->socket = ipc::SeqpacketSocket(std::move(*fd));
    Watch(*session);
    ++by_pid_[peer->pid];
    ++by_uid_[peer->uid];
    sessions_.emplace(id, std::move(session));
  }
}

bool Sessions::MayConnect(const ipc::PeerIdentity& peer) const {
  const auto of_pid = by_pid_.find(peer.pid);
  if (peer.pid != 0 && of_pid != by_pid_.end() && of_pid->second >= kMaxPerPid) return false;
  const auto of_uid = by_uid_.find(peer.uid);
  return !IsStranger(peer.uid) || of_uid == by_uid_.end() || of_uid->second < max_per_stranger_;
}

void Sessions::PauseAccepting() {
  listen_watch_ = {};
  accept_again_ = loop_.After(
      kAcceptPause, [this] { listen_watch_ = loop_.OnReadable(listener_.fd(), [this] { Accept(); }); });
}

void Sessions::Watch(Session& session) {
  session.watch = loop_.OnReadable(session.socket.fd(), [this, id = session.id] { Readable(id); });
}

void Sessions::Readable(uint64_t id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  const uid_t uid = it->second->peer.uid;
  if (turns_.Take(uid)) return Serve(id);
  // Not looked at again before it was served.
  it->second->watch = {};
  turns_.Later(uid, [this, id] {
    Serve(id);
    if (const auto again = sessions_.find(id); again != sessions_.end()) Watch(*again->second);
  });
}

void Sessions::Serve(uint64_t id) {
  for (int i = 0; i < kFramesAtOnce; ++i) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) return;  // its own last frame ended it
    Session& session = *it->second;
    auto received = session.socket.Receive();
    if (!received) return Drop(id, "a packet that is none of ours");
    if (received->what == ipc::Received::What::kWouldBlock) return;
    if (received->what == ipc::Received::What::kClosed) return Close(id);
    const auto frame = ipc::DecodeFrame(received->bytes);
    if (!frame) {
      // A guard of another release: told so, that it can leave itself out of force.
      if (frame.error().code == Code::kUnsupported) {
        RefuseGuard(session, 0, GPUMUX_REASON_OTHER_VERSION, "this gpumuxd speaks another version");
      }
      return Drop(id, "a frame that is none of ours");
    }
    if (!Handle(session, *frame, received->fds)) return Drop(id, "a frame out of place");
  }
}

bool Sessions::Handle(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds) {
  const bool json = frame.type >= GPUMUX_RUN_REQUEST;
  if (session.kind == Kind::kUnknown) {
    const bool listener = frame.type == GPUMUX_RECLAIM_LISTEN;
    if (frame.type != GPUMUX_GUARD_HELLO && frame.type != GPUMUX_RUN_REQUEST &&
        frame.type != GPUMUX_RUN_RESUME && !listener)
      return false;
    session.kind = json ? Kind::kRun : listener ? Kind::kListener : Kind::kGuard;
  }
  if (json != (session.kind == Kind::kRun)) return false;
  if (session.kind == Kind::kListener) return HandleListener(session, frame);
  return json ? HandleRun(session, frame, fds) : HandleGuard(session, frame, fds);
}

bool Sessions::HandleRun(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds) {
  switch (frame.type) {
    case GPUMUX_RUN_REQUEST: {
      if (session.asked) return false;
      session.asked = true;
      auto request = ParseRunRequest(frame.Text());
      if (!request) {
        leases_.send_refused(session.id, request.error());
        return true;
      }
      leases_.Request(session.id, session.peer, std::move(*request));
      return true;
    }
    case GPUMUX_RUN_RESUME: {
      if (session.asked) return false;
      session.asked = true;
      const auto resume = ParseRunResume(frame.Text());
      if (!resume) return false;
      leases_.Resume(session.id, session.peer, *resume, std::move(fds));
      return true;
    }
    case GPUMUX_RUN_STARTED: {
      const auto pid = ParseRunStarted(frame.Text());
      if (!pid) return false;
      leases_.Started(session.id, *pid);
      return true;
    }
    case GPUMUX_RUN_ENDED: {
      const auto ended = ParseRunEnded(frame.Text());
      if (!ended) return false;
      leases_.Ended(session.id, *ended);
      return true;
    }
    default:
      return false;
  }
}

bool Sessions::HandleGuard(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds) {
  if ((frame.type == GPUMUX_GUARD_HELLO) != (session.process == 0)) return false;
  switch (frame.type) {
    case GPUMUX_GUARD_HELLO:
      return Hello(session, frame, fds);
    case GPUMUX_CREDIT_REQUEST:
      return Credit(session, frame, /*context=*/false);
    case GPUMUX_CONTEXT_REQUEST:
      return Credit(session, frame, /*context=*/true);
    case GPUMUX_MEMORY_INFO_REQUEST:
      return MemoryInfo(session, frame);
    case GPUMUX_CONTEXT_NOTICE:
      return Notice(session, frame);
    case GPUMUX_PROCESS_LIST_REQUEST:
      return ProcessList(session, frame);
    case GPUMUX_HOLD_DESCRIPTORS:
      return HoldDescriptors(session, frame, fds);
    default:
      return false;
  }
}

void Sessions::RefuseGuard(Session& session, uint32_t request_id, uint32_t reason, const std::string& text) {
  gpumux_refused refused{};
  refused.reason = reason;
  ipc::SetField(refused.text, text);
  Over(session.id);
  Send(session.id, ipc::EncodeStruct(GPUMUX_REFUSED, request_id, refused));
}

bool Sessions::TakePages(Tenant& tenant, Member& member, std::vector<UniqueFd>& fds) {
  if (fds.size() != 2) return false;
  auto page = ProcessPage::Adopt(std::move(fds[0]));
  if (!page) {
    LogWarning("tenant {}: pid {} came back without its page: {}", tenant.id, member.process.pid,
               page.error().message);
    return false;
  }
  CloseOrphanPage(std::move(fds[1]));
  member.page = std::move(*page);
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    gpu.ledger.AdoptCredit(tenant.id, member.key, member.page->GrantedBefore(slot, gpu.ledger.TotalBytes()));
    const ProcessWords words = member.page->Read(slot, 0, gpu.ledger.TotalBytes());
    member.gpus[slot].contexts = static_cast<uint32_t>(words.contexts);
    // What was refused under the daemon before this one is not explained any more.
    member.gpus[slot].seen_own_limit = words.refused_own_limit;
    member.gpus[slot].seen_own_part = words.refused_own_part;
    member.gpus[slot].seen_device_full = words.refused_device_full;
  }
  // What NVML shows of it was overhead until now.
  for (const size_t gpu : tenant.gpus) monitor_.Refresh(gpu);
  return true;
}

bool Sessions::Hello(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds_before) {
  const auto hello = ipc::PayloadAs<gpumux_guard_hello>(frame);
  const auto refuse = [&](uint32_t reason, const std::string& text) {
    RefuseGuard(session, frame.request_id, reason, text);
    return true;
  };
  if (hello.pages_version != GPUMUX_PAGES_VERSION) {
    return refuse(GPUMUX_REASON_OTHER_VERSION, fmt::format("gpumuxd has pages of version {}, the guard {}",
                                                           GPUMUX_PAGES_VERSION, hello.pages_version));
  }
  const auto name = session.peer.pid > 0 ? NameProcess(session.peer.pid) : std::nullopt;
  // Another name than at its connection: the peer is dead, and whoever has its
  // pid now is not who speaks.
  Tenant* tenant =
      name && name == session.peer_process
          ? tenants_.FindOwner(session.peer.pid, session.peer.uid, ipc::FieldText(hello.tenant_hint))
          : nullptr;
  if (!tenant || tenant->state == TenantState::kEnded || tenant->reservation) {
    return refuse(GPUMUX_REASON_NOT_A_TENANT, fmt::format("no lease covers pid {}", session.peer.pid));
  }
  Tenant* of_member = nullptr;
  Member* member = tenants_.FindMember(*name, &of_member);
  uint32_t resumed = member && member->page ? GPUMUX_RESUMED_SAME : GPUMUX_RESUMED_NOT;
  if (resumed == GPUMUX_RESUMED_SAME && !(hello.flags & GPUMUX_HELLO_HAS_PAGES)) {
    // Another program in the same process (exec): the memory of the one before
    // went with it.
    resumed = GPUMUX_RESUMED_NOT;
    held_.ProgramGone(*of_member, *member);
    for (unsigned slot = 0; slot < of_member->gpus.size(); ++slot) {
      GpuState& gpu = *machine_.gpus()[of_member->gpus[slot]];
      ForgetProgram(*of_member, *member, slot, gpu);
      monitor_.Refresh(of_member->gpus[slot]);
    }
  }
  if (member) {
    tenant = of_member;
  } else {
    auto adopted = reaper_.Adopt(*tenant, *name);
    if (!adopted) {
      const bool many = adopted.error().code == Code::kDenied;
      return refuse(many ? GPUMUX_REASON_TOO_MANY : GPUMUX_REASON_NOT_A_TENANT, adopted.error().message);
    }
    member = *adopted;
  }
  if (!member->page && TakePages(*tenant, *member, fds_before)) resumed = GPUMUX_RESUMED_TAKEN_OVER;
  if (!member->page) {
    auto page = ProcessPage::Create();
    if (!page) return refuse(GPUMUX_REASON_INTERNAL, page.error().message);
    member->page = std::move(*page);
  }
  KillPoint(resumed == GPUMUX_RESUMED_TAKEN_OVER ? "guard-taken" : "guard-hello");
  session.tenant = tenant->id;
  session.process = member->key;
  ++member->sessions;
  gpumux_guard_welcome welcome{};
  welcome.pages_version = GPUMUX_PAGES_VERSION;
  welcome.gpu_count = static_cast<uint32_t>(tenant->gpus.size());
  welcome.strict = tenant->request.strict;
  welcome.resumed = resumed;
  welcome.pid = session.peer.pid;
  ipc::SetField(welcome.tenant_id, tenant->id);
  const int fds[] = {tenant->pages->limits_fd(), tenant->pages->tenant_fd(), member->page->fd()};
  Send(session.id, ipc::EncodeStruct(GPUMUX_GUARD_WELCOME, frame.request_id, welcome), fds);
  return true;
}

bool Sessions::Find(const Session& session, Tenant** tenant, Member** member) {
  *tenant = tenants_.Find(session.tenant);
  if (!*tenant) return false;
  const auto it = (*tenant)->members.find(session.process);
  if (it == (*tenant)->members.end() || it->second.died) return false;
  *member = &it->second;
  return true;
}

bool Sessions::Credit(Session& session, const ipc::Frame& frame, bool context) {
  CreditDesk::Ask ask;
  if (context) {
    ask.slot = ipc::PayloadAs<gpumux_context_request>(frame).gpu_slot;
  } else {
    const auto request = ipc::PayloadAs<gpumux_credit_request>(frame);
    ask.slot = request.gpu_slot;
    ask.bytes = request.bytes;
    ask.reclaim = !(request.flags & GPUMUX_CREDIT_WITHOUT_RECLAIM);
  }
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  // One request at a time is the protocol.
  if (session.asks > 0) return false;
  if (!Find(session, &tenant, &member) || ask.slot >= tenant->gpus.size()) return false;
  ask.session = session.id;
  ask.tenant = session.tenant;
  ask.process = session.process;
  ask.context = context;
  ask.reply = [this, id = session.id, request_id = frame.request_id,
               context](const CreditDesk::Answer& answer) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) return false;
    it->second->asks = 0;
    KillPoint(context ? "context-charged" : "credit-granted");
    const bool granted = answer.reason == GPUMUX_REASON_NONE;
    if (context) {
      const gpumux_context_reply reply{granted, answer.reason, answer.charged_bytes};
      return Send(id, ipc::EncodeStruct(GPUMUX_CONTEXT_REPLY, request_id, reply));
    }
    const gpumux_credit_reply reply{granted, answer.reason, answer.limit_bytes, answer.used_bytes,
                                    answer.promisable_bytes};
    return Send(id, ipc::EncodeStruct(GPUMUX_CREDIT_REPLY, request_id, reply));
  };
  session.asks = 1;
  KillPoint(context ? "context-asked" : "credit-asked");
  desk_.Submit(std::move(ask));
  return true;
}

bool Sessions::MemoryInfo(Session& session, const ipc::Frame& frame) {
  const unsigned slot = ipc::PayloadAs<gpumux_memory_info_request>(frame).gpu_slot;
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  if (!Find(session, &tenant, &member) || slot >= tenant->gpus.size()) return false;
  const GpuState& gpu = *machine_.gpus()[tenant->gpus[slot]];
  const Usage usage = Measure(*tenant, slot, gpu);
  const uint64_t ledger_used = gpu.ledger.Find(tenant->id)->used_bytes;
  gpumux_memory_info info{};
  info.total_bytes = gpu.ledger.ToldLimitBytes(tenant->id);
  // Free credit is nobody's yet: a recall gives it to whoever asks.
  info.used_bytes = ledger_used - std::min(ledger_used, usage.free_credit_bytes);
  const uint64_t rest = info.total_bytes > info.used_bytes ? info.total_bytes - info.used_bytes : 0;
  info.free_bytes = std::min(rest, gpu.ledger.AvailableBytes(tenant->id) + usage.free_credit_bytes);
  Send(session.id, ipc::EncodeStruct(GPUMUX_MEMORY_INFO, frame.request_id, info));
  return true;
}

bool Sessions::Notice(Session& session, const ipc::Frame& frame) {
  const auto notice = ipc::PayloadAs<gpumux_context_notice>(frame);
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  if (!Find(session, &tenant, &member) || notice.gpu_slot >= tenant->gpus.size()) return false;
  Member::Gpu& on = member->gpus[notice.gpu_slot];
  NotePeak(*tenant, notice.gpu_slot, *machine_.gpus()[tenant->gpus[notice.gpu_slot]]);
  uint32_t contexts = notice.contexts;
  if (const uint32_t granted = on.contexts + on.pending_contexts; contexts > granted) {
    // Made while no daemon answered; or a lie, which counts as far as NVML shows it.
    monitor_.Refresh(tenant->gpus[notice.gpu_slot]);
    const uint64_t shown =
        on.own_bytes.value_or(0) / machine_.gpus()[tenant->gpus[notice.gpu_slot]]->cost.context_bytes;
    contexts = static_cast<uint32_t>(std::max<uint64_t>(granted, std::min<uint64_t>(contexts, shown)));
  }
  // More contexts than before: those that were charged came to be. As many as
  // before: one that was charged failed. Fewer: one was destroyed.
  uint32_t settled = contexts > on.contexts ? contexts - on.contexts : contexts == on.contexts ? 1 : 0;
  on.pending_contexts -= std::min(on.pending_contexts, settled);
  on.contexts = contexts;
  monitor_.Refresh(tenant->gpus[notice.gpu_slot]);
  desk_.Retry();
  return true;
}

bool Sessions::ProcessList(Session& session, const ipc::Frame& frame) {
  Tenant* tenant = nullptr;
  Member* asking = nullptr;
  if (!Find(session, &tenant, &asking)) return false;
  // A process without a guard becomes a member by being seen.
  for (const size_t gpu : tenant->gpus) monitor_.Refresh(gpu);
  gpumux_process_list list{};
  const PidView view(session.peer.pid);
  const auto add_those = [&](bool on_gpu) {
    for (const auto& [key, member] : tenant->members) {
      const bool is = std::any_of(member.gpus.begin(), member.gpus.end(),
                                  [](const Member::Gpu& on) { return on.own_bytes.has_value(); });
      if (member.died || is != on_gpu || list.count == GPUMUX_MAX_LISTED) continue;
      list.processes[list.count++] = {member.process.pid, view.Of(member.process.pid).value_or(0)};
    }
  };
  add_those(true);
  add_those(false);
  Send(session.id, ipc::EncodeStruct(GPUMUX_PROCESS_LIST, frame.request_id, list));
  return true;
}

bool Sessions::Send(uint64_t id, std::span<const std::byte> packet, std::span<const int> fds) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return false;
  const Status sent = it->second->socket.Send(packet, fds);
  if (sent) return true;
  // The socket's end is seen by the next read; a full one is a peer that does not read.
  if (sent.error().code == Code::kTimeout) {
    loop_.Post([this, id] { Drop(id, "does not read its answers"); });
  }
  return false;
}

void Sessions::Drop(uint64_t id, const char* why) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  ++dropped_;
  const Time second = std::chrono::floor<std::chrono::seconds>(clock_.Now());
  if (second != log_second_) {
    if (logged_ > kLinesASecond) LogWarning("hung up on {} more peers", logged_ - kLinesASecond);
    log_second_ = second;
    logged_ = 0;
  }
  if (++logged_ <= kLinesASecond)
    LogWarning("hung up on pid {} (uid {}): {}", it->second->peer.pid, it->second->peer.uid, why);
  Close(id);
}

void Sessions::Over(uint64_t id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  it->second->over = true;
  it->second->since = clock_.Now();
}

void Sessions::Close(uint64_t id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  const bool run = it->second->kind == Kind::kRun;
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  if (it->second->process != 0 && Find(*it->second, &tenant, &member)) --member->sessions;
  const auto count = by_pid_.find(it->second->peer.pid);
  if (count != by_pid_.end() && --count->second == 0) by_pid_.erase(count);
  const auto of_uid = by_uid_.find(it->second->peer.uid);
  if (of_uid != by_uid_.end() && --of_uid->second == 0) by_uid_.erase(of_uid);
  it->second->watch = {};
  sessions_.erase(it);
  desk_.Forget(id);
  reclaim_.Forget(id);
  if (run) leases_.HungUp(id);
}

void Sessions::DropSilent() {
  std::vector<uint64_t> silent;
  for (const auto& [id, session] : sessions_) {
    const bool idle = session->kind == Kind::kUnknown || session->over;
    if (idle && clock_.Now() - session->since > kSilence) silent.push_back(id);
  }
  for (const uint64_t id : silent) Drop(id, "has nothing to say");
}

}  // namespace gpumux::daemon
