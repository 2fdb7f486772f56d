// SPDX-License-Identifier: Apache-2.0
//
// Sessions of guards: what a tenant's processes say and ask.
#include <fmt/format.h>

#include <algorithm>

#include "base/kill_point.h"
#include "base/log.h"
#include "daemon/mps_places.h"
#include "daemon/pid_view.h"
#include "daemon/sessions.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

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
    case GPUMUX_MPS_PLACE_REQUEST:
      return MpsPlace(session, frame);
    case GPUMUX_GATE_REQUEST:
      return Gate(session, frame, fds);
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

bool Sessions::TakeAccount(Tenant& tenant, Member& member) {
  std::vector<uint64_t> held;
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    const auto bytes = member.page->Held(slot);
    if (!bytes) return false;
    held.push_back(*bytes);
  }
  // What NVML shows of it bounds what it may say.
  for (const size_t gpu : tenant.gpus) monitor_.Refresh(gpu);
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    Member::Gpu& on = member.gpus[slot];
    const auto* entry = gpu.ledger.Find(tenant.id, member.key);
    if (!entry) continue;
    const ProcessWords words = member.page->Read(slot, 0, gpu.ledger.TotalBytes());
    const uint64_t own = on.own_bytes.value_or(0);
    const uint64_t most = entry->granted_bytes + gpu.ledger.AvailableBytes(tenant.id) + own;
    gpu.ledger.AdoptCredit(tenant.id, member.key, std::min(held[slot], most));
    const uint64_t cost = std::max<uint64_t>(gpu.cost.context_bytes, 1);
    on.contexts = static_cast<uint32_t>(std::min(words.contexts, (own + cost - 1) / cost));
    on.pending_contexts = words.contexts_under_way;
  }
  // What NVML shows of it was overhead until now, if an earlier daemon had it.
  for (const size_t gpu : tenant.gpus) monitor_.Refresh(gpu);
  return true;
}

bool Sessions::TakePages(Tenant& tenant, Member& member, std::vector<UniqueFd>& fds) {
  auto page = ProcessPage::Adopt(std::move(fds[0]));
  if (!page) {
    LogWarning("tenant {}: pid {} came back without its page: {}", tenant.id, member.process.pid,
               page.error().message);
    return false;
  }
  CloseOrphanPage(std::move(fds[1]));
  member.page = std::move(*page);
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    const ProcessWords words =
        member.page->Read(slot, 0, machine_.gpus()[tenant.gpus[slot]]->ledger.TotalBytes());
    // What was refused under the daemon before this one is not explained any more.
    member.gpus[slot].seen_own_limit = words.refused_own_limit;
    member.gpus[slot].seen_own_part = words.refused_own_part;
    member.gpus[slot].seen_device_full = words.refused_device_full;
  }
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
  if (!member->page && fds_before.size() == 2 && TakePages(*tenant, *member, fds_before))
    resumed = GPUMUX_RESUMED_TAKEN_OVER;
  // It may have taken bytes that this daemon does not know of, or not got what it was granted.
  if (resumed != GPUMUX_RESUMED_NOT && !TakeAccount(*tenant, *member)) {
    if (resumed == GPUMUX_RESUMED_TAKEN_OVER) member->page.reset();
    return refuse(GPUMUX_REASON_INTERNAL, "its page changes all the time");
  }
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
  ask.request_id = frame.request_id;
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
  SettlePlace(on);
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

}  // namespace gpumux::daemon
