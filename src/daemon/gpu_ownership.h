// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "gpu/index.h"
#include "gpu/source.h"
#include "gpu/uuid.h"

namespace gpumux::daemon {

// A GPU's ledger has one owner on the machine: whoever listens on the abstract
// socket of its UUID. The kernel frees the name when the last descriptor is
// closed, so nothing stale can stay; the keeper holds a duplicate, so the name
// stays taken as long as any tenant lives, even if its daemon is gone. It needs
// no rights, which also means that any user can take the name of a GPU that no
// daemon has: a machine's daemon runs from boot on.
//
// Abstract names are one set per network namespace: daemons in different ones
// do not see each other.
struct GpuOwner {
  uid_t uid = 0;
  pid_t pid = 0;         // who called listen; may be gone
  bool answers = false;  // a living daemon; else only its tenants hold the name
};

struct GpuClaim {
  UniqueFd socket;                // ours if valid
  std::optional<GpuOwner> other;  // else whose it is
};

std::string OwnershipName(const gpu::GpuSource& source, const gpu::Uuid& uuid);

// Takes the name or says who has it. `known` is what the last answer said: who
// did not greet then is not asked again, for each question stays in a queue
// that nobody empties. kInternal: neither worked.
Result<GpuClaim> ClaimGpu(const std::string& name, const std::optional<GpuOwner>& known = std::nullopt);

// Whether a descriptor, from wherever it came, is the listening socket of that name.
bool IsClaimOf(int socket, const std::string& name);

// Answers one who asks whose the GPU is: accepts what waits on `socket` (which
// must be ours) and writes one line of JSON to each.
void GreetClaimants(int socket, const std::string& api_path);

// "GPU 0 is managed by the gpumuxd of user alice (pid 812)".
Error DescribeOwner(const gpu::Index& gpu_index, const GpuOwner& owner);

}  // namespace gpumux::daemon
