// SPDX-License-Identifier: Apache-2.0
//
// Sessions of guards: descriptors to be held (held_descriptors.h), places of clients of MPS
// (mps_places.h), gates (gates.h).
#include "daemon/sessions.h"

namespace gpumux::daemon {

bool Sessions::HoldDescriptors(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds) {
  const auto message = ipc::PayloadAs<gpumux_hold_descriptors>(frame);
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  return Find(session, &tenant, &member) && held_.Receive(*tenant, *member, message, fds);
}

bool Sessions::MpsPlace(Session& session, const ipc::Frame& frame) {
  const auto request = ipc::PayloadAs<gpumux_mps_place_request>(frame);
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  if (!Find(session, &tenant, &member) || request.gpu_slot >= tenant->gpus.size()) return false;
  const gpumux_mps_place_reply reply{mps_place
                                         ? mps_place(*tenant, *member, request.gpu_slot, request.driver_error)
                                         : static_cast<uint32_t>(GPUMUX_MPS_PLACE_YES),
                                     0};
  Send(session.id, ipc::EncodeStruct(GPUMUX_MPS_PLACE_REPLY, frame.request_id, reply));
  return true;
}

bool Sessions::Gate(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds) {
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  if (!Find(session, &tenant, &member) || !gate) return false;
  const auto answer = gate(*tenant, *member, ipc::PayloadAs<gpumux_gate_request>(frame).first, fds);
  if (!answer) return false;
  Send(session.id, ipc::EncodeStruct(GPUMUX_GATE_REPLY, frame.request_id, answer->reply), answer->fds);
  return true;
}

}  // namespace gpumux::daemon
