// SPDX-License-Identifier: Apache-2.0
#include "daemon/container.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace gpumux::daemon {
namespace {

const std::string kId = "3f0c5d1e9a2b4c6d8e0f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f";
const std::string kPod = "1b2c3d4e-5f60-4718-92a3-b4c5d6e7f809";

TEST(Container, IsFoundInWhatRuntimesCallTheirControlGroups) {
  EXPECT_EQ(ContainerOf("0::/system.slice/docker-" + kId + ".scope\n"), "docker 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("12:devices:/docker/" + kId + "\n11:cpu,cpuacct:/docker/" + kId + "\n"),
            "docker 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId +
                        ".scope/container\n"),
            "podman 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("4:memory:/libpod_parent/libpod-" + kId + "\n"), "podman 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("0::/default/" + kId + "\n"), "container 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("0::/system.slice/nerdctl-" + kId + ".scope\n"), "containerd 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
                        "1b2c3d4e_5f60_4718_92a3_b4c5d6e7f809.slice/cri-containerd-" +
                        kId + ".scope\n"),
            "pod " + kPod + ", containerd 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("3:memory:/kubepods/besteffort/pod" + kPod + "/" + kId + "\n"),
            "pod " + kPod + ", container 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("0::/kubepods.slice/kubepods-pod1b2c3d4e_5f60_4718_92a3_b4c5d6e7f809.slice/crio-" +
                        kId + ".scope\n"),
            "pod " + kPod + ", cri-o 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOf("8:memory:/slurm/uid_1000/job_4711/step_0/task_0\n"), "slurm job 4711");
  EXPECT_EQ(ContainerOf("0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n"),
            "slurm job 4711");
  EXPECT_EQ(ContainerOf("0::/lxc.payload.web-1/init.scope\n"), "lxc web-1");
  EXPECT_EQ(ContainerOf("9:pids:/lxc/web-1\n"), "lxc web-1");
}

TEST(Container, IsNoneWhereNothingSaysSo) {
  for (const char* text :
       {"", "0::/\n", "0::/user.slice/user-1000.slice/session-2.scope\n", "0::/init.scope\n",
        "0::/system.slice/docker.service\n", "0::/system.slice/docker-short.scope\n", "0::/pod/job_1\n",
        "0::/home/job_17/pod\n"}) {
    EXPECT_EQ(ContainerOf(text), "") << text;
  }
}

// Who may make control groups may call them anything.
TEST(Container, OfHostileTextIsPlainAndBounded) {
  EXPECT_EQ(ContainerOf("0::/lxc.payload.\033[31mred\n"), "");
  EXPECT_EQ(ContainerOf("0::/slurm/job_99999999999999999999999999\n"), "");
  EXPECT_EQ(ContainerOf("0::/kubepods/pod" + std::string(5000, 'a') + "\n"), "");
  EXPECT_EQ(ContainerOf(std::string(1u << 20, '/')), "");
  EXPECT_EQ(ContainerOf("0:" + std::string(1u << 20, ':')), "");
  std::mt19937 random(7);
  const std::string pieces[] = {"/",   ":",    "0::",   "docker-", kId, ".scope",
                                "pod", "job_", "slurm", "\n",      "-", "\xff"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int k = 0; k < 40; ++k) text += pieces[random() % std::size(pieces)];
    const std::string found = ContainerOf(text);
    EXPECT_LE(found.size(), 200u) << text;
    for (const char c : found) EXPECT_TRUE(c >= ' ' && c < 0x7f) << text;
  }
}

TEST(Container, IsReadFromTheProcess) {
  char name[] = "/tmp/gpumux-proc-XXXXXX";
  const std::string proc = ::mkdtemp(name);
  std::filesystem::create_directory(proc + "/812");
  std::ofstream(proc + "/812/cgroup") << "0::/system.slice/docker-" << kId << ".scope\n";
  EXPECT_EQ(ContainerOfProcess(812, proc), "docker 3f0c5d1e9a2b");
  EXPECT_EQ(ContainerOfProcess(813, proc), "");
  std::filesystem::remove_all(proc);
}

}  // namespace
}  // namespace gpumux::daemon
