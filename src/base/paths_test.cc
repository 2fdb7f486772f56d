// SPDX-License-Identifier: Apache-2.0
#include "base/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace gpumux {
namespace {

using ::testing::HasSubstr;

class RuntimeDir : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpumux-paths-XXXXXX";
    root_ = ::mkdtemp(name);
    ::unsetenv("GPUMUX_RUNTIME_DIR");
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(RuntimeDir, IsCreatedPrivateUnderXdg) {
  ::setenv("XDG_RUNTIME_DIR", root_.c_str(), 1);
  const auto paths = FindRuntimePaths(false);
  ASSERT_TRUE(paths) << paths.error().message;
  EXPECT_EQ(paths->dir, root_ + "/gpumux");
  EXPECT_EQ(paths->session_socket, root_ + "/gpumux/session.sock");
  struct stat info{};
  ASSERT_EQ(::stat(paths->dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_TRUE(FindRuntimePaths(false));
}

TEST_F(RuntimeDir, TheSoftwareGpuHasItsOwn) {
  ::setenv("GPUMUX_RUNTIME_DIR", (root_ + "/r/").c_str(), 1);
  const auto paths = FindRuntimePaths(true);
  ASSERT_TRUE(paths) << paths.error().message;
  EXPECT_EQ(paths->dir, root_ + "/r/sim");
}

TEST_F(RuntimeDir, ASymbolicLinkIsRefused) {
  ASSERT_EQ(::mkdir((root_ + "/real").c_str(), 0700), 0);
  ASSERT_EQ(::symlink((root_ + "/real").c_str(), (root_ + "/link").c_str()), 0);
  ::setenv("GPUMUX_RUNTIME_DIR", (root_ + "/link").c_str(), 1);
  const auto paths = FindRuntimePaths(false);
  ASSERT_FALSE(paths);
  EXPECT_EQ(paths.error().code, Code::kDenied);
  EXPECT_THAT(paths.error().message, HasSubstr("symbolic link"));
}

TEST_F(RuntimeDir, OneThatOthersMayEnterIsRefused) {
  ASSERT_EQ(::mkdir((root_ + "/open").c_str(), 0755), 0);
  ::setenv("GPUMUX_RUNTIME_DIR", (root_ + "/open").c_str(), 1);
  const auto paths = FindRuntimePaths(false);
  ASSERT_FALSE(paths);
  EXPECT_EQ(paths.error().code, Code::kDenied);
  EXPECT_THAT(paths.error().hint, HasSubstr("chmod 700"));
}

TEST_F(RuntimeDir, SomeoneElsesIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  ASSERT_EQ(::mkdir((root_ + "/theirs").c_str(), 0700), 0);
  ASSERT_EQ(::chown((root_ + "/theirs").c_str(), 65534, 65534), 0);
  ::setenv("GPUMUX_RUNTIME_DIR", (root_ + "/theirs").c_str(), 1);
  const auto paths = FindRuntimePaths(false);
  ASSERT_FALSE(paths);
  EXPECT_THAT(paths.error().message, HasSubstr("belongs to uid 65534"));
}

TEST_F(RuntimeDir, ARelativePathIsRefused) {
  ::setenv("GPUMUX_RUNTIME_DIR", "run", 1);
  EXPECT_EQ(FindRuntimePaths(false).error().code, Code::kInvalid);
}

TEST_F(RuntimeDir, AMissingXdgFolderIsNotUsed) {
  ::setenv("XDG_RUNTIME_DIR", (root_ + "/gone").c_str(), 1);
  const auto dir = FindRuntimeDir();
  ASSERT_TRUE(dir) << dir.error().ToString();
  EXPECT_EQ(*dir, "/tmp/gpumux-" + std::to_string(::geteuid()));
}

}  // namespace
}  // namespace gpumux
