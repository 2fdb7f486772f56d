// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace gpumux::daemon {

// What a process runs in, from the text of /proc/PID/cgroup: "docker
// 3f0c5d1e9a2b", "podman ...", "pod 1b2c... (3f0c5d1e9a2b)", "slurm job 4711",
// "containerd ...", "lxc NAME"; empty: in nothing that is known. `text` may be
// anything: names are those of whoever made the control groups, so this tells
// people where to look and decides nothing.
std::string ContainerOf(std::string_view text);

// Of a process; empty also if it is gone.
std::string ContainerOfProcess(pid_t pid, const std::string& proc_root = "/proc");

}  // namespace gpumux::daemon
