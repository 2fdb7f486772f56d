// SPDX-License-Identifier: Apache-2.0
//
// A domain against a control program of the test's own.
#include "daemon/mps_domain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/process.h"

namespace gpumux::daemon {
namespace {

using ::testing::HasSubstr;
using State = MpsDomain::State;

// A control daemon that ends when it is told to. Its answers are files in the log directory;
// without any it never has a server. With the server's pid in `fault` a fault is written into
// the log while it is asked for the server's state.
constexpr char kControl[] = R"sh(#!/bin/sh
pid_file="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
case "$1" in
  -d) "$0" serve </dev/null >/dev/null 2>&1 & echo $! >"$pid_file"; exit 0 ;;
  serve) while :; do sleep 0.02; done ;;
esac
read -r line
kill -0 "$(cat "$pid_file" 2>/dev/null)" 2>/dev/null || exit 1
case "$line" in quit*) kill "$(cat "$pid_file")" ;; esac
[ "$line" = "get_server_status $(cat "$CUDA_MPS_LOG_DIRECTORY/fault" 2>/dev/null)" ] &&
  echo "Fatal GPU error" >>"$CUDA_MPS_LOG_DIRECTORY/server.log"
cat "$CUDA_MPS_LOG_DIRECTORY/${line%% *}" 2>/dev/null
exit 0
)sh";

class MpsDomainTest : public ::testing::Test {
 protected:
  MpsDomainTest() {
    char path[] = "/tmp/gpumux-domain-XXXXXX";
    dir_ = ::mkdtemp(path);
    programs_.control = dir_ + "/nvidia-cuda-mps-control";
    std::ofstream(programs_.control) << kControl;
    ::chmod(programs_.control.c_str(), 0755);
    programs_.env = {"PATH=/usr/bin:/bin"};
  }
  ~MpsDomainTest() override {
    if (const pid_t pid = ControlPid(); pid > 1) ::kill(pid, SIGKILL);
    std::filesystem::remove_all(dir_);
  }
  // Of its file; also one that is dead.
  pid_t ControlPid() const {
    pid_t pid = 0;
    std::ifstream(dir_ + "/domain/pipe/nvidia-cuda-mps-control.pid") >> pid;
    return pid;
  }
  void Answer(const std::string& command, const std::string& text) {
    std::filesystem::create_directories(dir_ + "/domain/log");
    std::ofstream(dir_ + "/domain/log/" + command) << text;
  }
  // False: not in time.
  bool RunUntil(const std::function<bool()>& done) {
    bool late = false;
    const auto look = loop_.Every(std::chrono::milliseconds(5), [&] {
      if (done()) loop_.Stop();
    });
    const auto limit = loop_.After(std::chrono::seconds(20), [&] {
      late = true;
      loop_.Stop();
    });
    loop_.Run();
    return !late;
  }

  std::string dir_;
  EventLoop loop_;
  ManualClock clock_;
  MpsPrograms programs_;
};

TEST_F(MpsDomainTest, OneThatFailsToStartLeavesNoControlDaemon) {
  MpsDomain domain(loop_, clock_, programs_, {dir_ + "/domain", false}, {.gpus = {gpu::Uuid{}}});
  domain.Start();
  ASSERT_TRUE(RunUntil([&] { return domain.daemon_pid() != 0; }));
  clock_.Advance(std::chrono::seconds(21));
  ASSERT_TRUE(RunUntil([&] { return domain.state() == State::kGone; }));
  ASSERT_TRUE(domain.failure());
  EXPECT_THAT(domain.failure()->message, HasSubstr("did not get ready"));
  const auto stat = ReadProcessStat(ControlPid());
  EXPECT_TRUE(!stat || stat->state == 'Z') << "the control daemon is still there";
}

TEST_F(MpsDomainTest, HasTwentySecondsToStart) {
  MpsDomain domain(loop_, clock_, programs_, {dir_ + "/domain", false}, {.gpus = {gpu::Uuid{}}});
  domain.Start();
  ASSERT_TRUE(RunUntil([&] { return domain.daemon_pid() != 0; }));
  clock_.Advance(std::chrono::milliseconds(19'900));
  unsigned looks = 0;
  ASSERT_TRUE(RunUntil([&] { return ++looks > 40; }));
  EXPECT_EQ(domain.state(), State::kStarting);
  clock_.Advance(std::chrono::milliseconds(200));
  EXPECT_TRUE(RunUntil([&] { return domain.failure().has_value(); }));
}

TEST_F(MpsDomainTest, TellsAListOfClientsFromWordsThatAreNone) {
  // The server is any process.
  Answer("get_server_list", std::to_string(::getpid()) + "\n");
  Answer("get_server_status", "ACTIVE\n");
  MpsDomain domain(loop_, clock_, programs_, {dir_ + "/domain", false}, {.gpus = {gpu::Uuid{}}});
  domain.Start();
  ASSERT_TRUE(RunUntil([&] { return domain.state() == State::kActive; }));
  std::vector<std::string> answers;
  for (const char* text : {"", "120\n7\n", "permission denied\n"}) {
    Answer("get_client_list", text);
    const size_t before = answers.size();
    domain.AskClients([&](const Result<std::set<pid_t>>& pids) {
      std::string said = pids ? "" : "none";
      if (pids) {
        for (const pid_t pid : *pids) said += std::to_string(pid) + " ";
      }
      answers.push_back(said);
    });
    ASSERT_TRUE(RunUntil([&] { return answers.size() > before; }));
  }
  EXPECT_THAT(answers, ::testing::ElementsAre("", "7 120 ", "none"));
}

// Its clients have the error, and may have ended with it, before the server writes its log.
TEST_F(MpsDomainTest, SeesAFaultThatIsWrittenWhileItAsks) {
  Answer("get_server_list", std::to_string(::getpid()) + "\n");
  Answer("get_server_status", "ACTIVE\n");
  MpsDomain domain(loop_, clock_, programs_, {dir_ + "/domain", false}, {.gpus = {gpu::Uuid{}}});
  unsigned faults = 0;
  domain.on_lost_work = [&](bool fault) { faults += fault ? 1 : 0; };
  domain.Start();
  ASSERT_TRUE(RunUntil([&] { return domain.state() == State::kActive; }));
  Answer("fault", std::to_string(::getpid()));
  std::optional<unsigned> known;
  domain.AskNow([&] { known = faults; });
  ASSERT_TRUE(RunUntil([&] { return known.has_value(); }));
  EXPECT_EQ(known, 1u);
}

}  // namespace
}  // namespace gpumux::daemon
