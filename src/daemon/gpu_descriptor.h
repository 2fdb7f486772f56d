// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

namespace gpumux::daemon {

// Major numbers of NVIDIA's character devices, by the text of /proc/devices; 195,
// which is NVIDIA's by assignment, is always among them.
std::set<unsigned> NvidiaMajors(const std::string& proc_devices);

// The descriptor is of a GPU: a character device of NVIDIA, or what stands for one
// of the software GPU if this machine's GPUs are `simulated`.
bool IsOfGpu(int fd, bool simulated);

}  // namespace gpumux::daemon
