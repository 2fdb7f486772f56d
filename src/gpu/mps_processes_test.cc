// SPDX-License-Identifier: Apache-2.0
#include "gpu/mps_processes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace gpumux::gpu {
namespace {

// A /proc of the test's own making.
class MpsProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "gpumux-proc.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    proc_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(proc_); }

  void Add(pid_t pid, const std::string& name, const std::string& command, const std::string& environment,
           char state = 'S') {
    const std::string dir = proc_ + "/" + std::to_string(pid);
    std::filesystem::create_directory(dir);
    std::ofstream(dir + "/stat") << pid << " (" << name << ") " << state
                                 << " 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n";
    std::ofstream(dir + "/status") << "Name:\t" << name << "\nUid:\t812\t0\t0\t0\n";
    std::ofstream(dir + "/cmdline") << command;
    std::ofstream(dir + "/environ") << environment;
  }

  std::string proc_;
};

std::string Zeros(std::string text) {
  for (char& c : text) {
    if (c == ' ') c = '\0';
  }
  return text;
}

TEST_F(MpsProcesses, AreControlDaemonsWithWhatTheyWereStartedWith) {
  Add(30, "nvidia-cuda-mps", Zeros("/usr/bin/nvidia-cuda-mps-control -d -multiuser-server "),
      Zeros("A=b CUDA_MPS_PIPE_DIRECTORY=/p CUDA_MPS_LOG_DIRECTORY=/l CUDA_VISIBLE_DEVICES=GPU-1,GPU-2 "));
  Add(20, "nvidia-cuda-mps", Zeros("nvidia-cuda-mps-control -f "), Zeros("A=b CUDA_MPS_PIPE_DIRECTORY= "));
  Add(10, "nvidia-cuda-mps", Zeros("nvidia-cuda-mps-control -d "), "");
  const auto found = FindMpsDaemons(proc_);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].pid, 10);
  EXPECT_FALSE(found[0].settings) << "nobody may read what it was started with";
  EXPECT_FALSE(found[0].every_user);
  ASSERT_TRUE(found[1].settings);
  EXPECT_EQ(found[1].settings->pipe_dir, "/tmp/nvidia-mps");
  EXPECT_EQ(found[1].settings->log_dir, "/var/log/nvidia-mps");
  EXPECT_FALSE(found[1].settings->visible);
  ASSERT_TRUE(found[2].settings);
  EXPECT_EQ(found[2].pid, 30);
  EXPECT_EQ(found[2].owner, 812u);
  EXPECT_TRUE(found[2].every_user);
  EXPECT_EQ(found[2].settings->pipe_dir, "/p");
  EXPECT_EQ(found[2].settings->log_dir, "/l");
  EXPECT_EQ(found[2].settings->visible, "GPU-1,GPU-2");
}

TEST_F(MpsProcesses, AreNoServersCommandsAndDead) {
  Add(10, "nvidia-cuda-mps", Zeros("nvidia-cuda-mps-server "), Zeros("A=b "));
  Add(11, "nvidia-cuda-mps", Zeros("nvidia-cuda-mps-control "), Zeros("A=b "));
  Add(12, "nvidia-cuda-mps", Zeros("nvidia-cuda-mps-control -d "), Zeros("A=b "), 'Z');
  Add(13, "bash", Zeros("nvidia-cuda-mps-control -d "), Zeros("A=b "));
  EXPECT_TRUE(FindMpsDaemons(proc_).empty());
}

}  // namespace
}  // namespace gpumux::gpu
