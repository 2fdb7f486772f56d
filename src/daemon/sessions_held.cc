// SPDX-License-Identifier: Apache-2.0
//
// Sessions of guards: descriptors to be held (held_descriptors.h).
#include "daemon/sessions.h"

namespace gpumux::daemon {

bool Sessions::HoldDescriptors(Session& session, const ipc::Frame& frame, std::vector<UniqueFd>& fds) {
  const auto message = ipc::PayloadAs<gpumux_hold_descriptors>(frame);
  Tenant* tenant = nullptr;
  Member* member = nullptr;
  return Find(session, &tenant, &member) && held_.Receive(*tenant, *member, message, fds);
}

}  // namespace gpumux::daemon
