// SPDX-License-Identifier: Apache-2.0
#include "daemon/pid_view.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gpumux::daemon {
namespace {

TEST(PidView, ReadsTheLineOfAllItsPids) {
  EXPECT_EQ(ParseNsPids("Name:\ta\nPid:\t9\nNSpid:\t9\nNSpgid:\t8\n"), (std::vector<pid_t>{9}));
  EXPECT_EQ(ParseNsPids("Name:\ta\nNSpid:\t4711\t12\t1\n"), (std::vector<pid_t>{4711, 12, 1}));
  EXPECT_EQ(ParseNsPids("Name:\ta\nNSpid:\t4711\t12"), (std::vector<pid_t>{4711, 12}));
  // A name may hold what looks like the line, but not a line break.
  EXPECT_EQ(ParseNsPids("Name:\tNSpid: 3\nPid:\t9\n"), std::vector<pid_t>{});
  EXPECT_EQ(ParseNsPids("\nNSpid:"), std::vector<pid_t>{});
  EXPECT_EQ(ParseNsPids("\nNSpid:\tx 7\nmore"), (std::vector<pid_t>{7}));
  EXPECT_EQ(ParseNsPids(""), std::vector<pid_t>{});
}

TEST(PidView, OutsideOfAnyNamespaceIsTheMachines) {
  const PidView view(getpid());
  EXPECT_EQ(view.Of(getpid()), getpid());
  EXPECT_EQ(view.Of(1), 1);
  EXPECT_EQ(view.Of(0x3fffffff), std::nullopt);
  // A viewer that is gone sees nothing.
  EXPECT_EQ(PidView(0x3fffffff).Of(getpid()), std::nullopt);
}

// /proc of two containers: as deep is not the same place.
TEST(PidView, OfAnotherNamespaceShowsNothing) {
  char name[] = "/tmp/gpumux-pid-view-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  const std::string root = name;
  const auto add = [&](pid_t pid, const std::string& pids, const std::string& space) {
    const std::string dir = root + "/" + std::to_string(pid);
    std::filesystem::create_directories(dir + "/ns");
    std::ofstream(dir + "/status") << "Name:\tp\nNSpid:\t" << pids << "\n";
    std::ofstream(root + "/" + space).put(' ');
    if (!space.empty()) std::filesystem::create_symlink(root + "/" + space, dir + "/ns/pid");
  };
  add(100, "100", "machine");
  add(200, "200 1", "a");
  add(201, "201 7", "a");
  add(300, "300 7", "b");
  const PidView view(200, root);
  EXPECT_EQ(view.Of(200), 1);
  EXPECT_EQ(view.Of(201), 7);
  EXPECT_EQ(view.Of(300), std::nullopt);
  EXPECT_EQ(view.Of(100), std::nullopt);
  // From outside all are seen.
  EXPECT_EQ(PidView(100, root).Of(300), 300);
  // A namespace that may not be read: the viewer still knows itself.
  std::filesystem::remove(root + "/200/ns/pid");
  EXPECT_EQ(PidView(200, root).Of(200), 1);
  EXPECT_EQ(PidView(200, root).Of(201), std::nullopt);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpumux::daemon
