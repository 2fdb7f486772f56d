// SPDX-License-Identifier: Apache-2.0
#include "daemon/sessions.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/log.h"
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
  leases_.send_noted = [this](uint64_t id) {
    const auto packet = ipc::EncodeText(GPUMUX_RUN_NOTED, 0, "{}");
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

bool Sessions::Find(const Session& session, Tenant** tenant, Member** member) {
  *tenant = tenants_.Find(session.tenant);
  if (!*tenant) return false;
  const auto it = (*tenant)->members.find(session.process);
  if (it == (*tenant)->members.end() || it->second.died) return false;
  *member = &it->second;
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
