// SPDX-License-Identifier: Apache-2.0
//
// Sessions of listeners: a tenant's process that can be asked for memory which
// it only caches (reclaim.h).
#include <fmt/format.h>

#include "daemon/sessions.h"

namespace gpumux::daemon {

bool Sessions::HandleListener(Session& session, const ipc::Frame& frame) {
  if (frame.type == GPUMUX_RECLAIM_LISTEN) return Listen(session, frame);
  // Who was not asked has nothing to say: its answers would be work for nothing.
  if (frame.type != GPUMUX_RECLAIM_DONE || !reclaim_.Done(session.id, frame.request_id)) return false;
  loop_.Post([this] {
    desk_.Retry();
    leases_.Schedule();
  });
  return true;
}

bool Sessions::Listen(Session& session, const ipc::Frame& frame) {
  if (session.listens) return false;
  Tenant* tenant = nullptr;
  // By who it is, not by what it says, and only if that process itself said hello.
  const Member* member = session.peer_process ? tenants_.FindMember(*session.peer_process, &tenant) : nullptr;
  if (!member || !member->page || tenant->state == TenantState::kEnded) {
    RefuseGuard(session, frame.request_id, GPUMUX_REASON_NOT_A_TENANT,
                fmt::format("no guard of pid {} has said hello", session.peer.pid));
    return true;
  }
  session.listens = true;
  // One of before whose end the loop has not seen, or a second one.
  if (const uint64_t before = reclaim_.Listen(session.id, *tenant, member->key)) Close(before);
  leases_.ScheduleSoon();  // somebody may wait for what it caches
  Send(session.id, ipc::EncodeStruct(GPUMUX_RECLAIM_LISTENING, frame.request_id, gpumux_reclaim_listening{}));
  return true;
}

bool Sessions::AskListener(uint64_t id, uint32_t ask, unsigned slot, uint64_t bytes) {
  const gpumux_reclaim_request request{.gpu_slot = slot, .reserved = 0, .wanted_bytes = bytes};
  return Send(id, ipc::EncodeStruct(GPUMUX_RECLAIM_REQUEST, ask, request));
}

}  // namespace gpumux::daemon
