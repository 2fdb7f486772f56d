// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace gpumux {
namespace {

TEST(ProcessStat, ReadsANameWithSpacesAndParentheses) {
  const auto stat = ParseProcessStat(
      "4711 (a) (b ) Z 12 4711 4711 0 -1 4194560 88 0 0 0 1 2 0 0 20 0 1 0 998877 11 22 "
      "18446744073709551615\n");
  ASSERT_TRUE(stat) << stat.error().message;
  EXPECT_EQ(stat->pid, 4711);
  EXPECT_EQ(stat->name, "a) (b ");
  EXPECT_EQ(stat->state, 'Z');
  EXPECT_EQ(stat->parent, 12);
  EXPECT_EQ(stat->start_time, 998877u);
}

TEST(ProcessStat, RefusesTruncatedAndRandomLines) {
  const std::string good = "1 (init) S 0 1 1 0 -1 4194560 88 0 0 0 1 2 0 0 20 0 1 0 5";
  ASSERT_TRUE(ParseProcessStat(good));
  for (size_t n = 0; n + 2 < good.size(); ++n) EXPECT_FALSE(ParseProcessStat(good.substr(0, n))) << n;
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string line(random() % 200, ' ');
    for (char& c : line) c = static_cast<char>(random());
    (void)ParseProcessStat(line);  // must not crash; sanitizers watch
  }
}

TEST(Process, KnowsItselfAndItsParent) {
  const auto self = ReadProcessStat(getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(self->pid, getpid());
  EXPECT_EQ(self->parent, getppid());
  EXPECT_GT(self->start_time, 0u);
  EXPECT_EQ(ReadProcessStat(getpid())->start_time, self->start_time);
  EXPECT_EQ(ProcessOwner(getpid()), getuid());
  EXPECT_THAT(ReadCommandLine(getpid()).at(0), ::testing::HasSubstr("base_test"));
  EXPECT_THAT(ListProcesses(), ::testing::Contains(getpid()));
  EXPECT_THAT(ExecutableDir().value(), ::testing::EndsWith("/test"));
}

TEST(ProcessOwner, OfASetUserIdProgramIsWhoStartedIt) {
  const std::filesystem::path proc =
      std::filesystem::temp_directory_path() / fmt::format("gpumux-process-test-{}", getpid());
  std::filesystem::create_directories(proc / "4711");
  const auto write = [&](const std::string& status) { std::ofstream(proc / "4711/status") << status; };
  write("Name:\tUid:\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t7\t7\t7\t7\n");
  EXPECT_EQ(ProcessOwner(4711, proc), 1000u);
  for (const char* broken : {"", "Uid:\t5\t0\n", "Name:\tx\nUid:\t", "Name:\tx\nUid:\t-1\t0\t0\t0\n",
                             "Name:\tx\nUid:\t99999999999\t0\t0\t0\n"}) {
    write(broken);
    EXPECT_FALSE(ProcessOwner(4711, proc)) << broken;
  }
  std::filesystem::remove_all(proc);
}

TEST(Process, ADeadOneIsNotFoundAndItsPidfdTellsTheEnd) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const auto pidfd = OpenPidfd(child);
  ASSERT_TRUE(pidfd);
  pollfd entry{pidfd->get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  kill(child, SIGKILL);
  EXPECT_EQ(poll(&entry, 1, 5000), 1);
  EXPECT_EQ(ReadProcessStat(child)->state, 'Z');
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(ReadProcessStat(child).error().code, Code::kNotFound);
  EXPECT_EQ(OpenPidfd(child).error().code, Code::kNotFound);
  EXPECT_EQ(ProcessOwner(child).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace gpumux
