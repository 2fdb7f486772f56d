// SPDX-License-Identifier: Apache-2.0
//
// Disks that are full, and files that somebody removed,
// replaced or filled with something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

// A file system of its own, so small that it can be filled, where the daemon's files are.
class SmallDisk {
 public:
  explicit SmallDisk(Sandbox& box) : path_(box.runtime_dir()) {
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=1m,mode=0700") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill() {
    std::ofstream file(path_ + "/filler", std::ios::binary);
    const std::string page(4096, 'x');
    while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  void Empty() { ::unlink((path_ + "/filler").c_str()); }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST(Disk, ThatIsFullStopsNewPromisesAndNobody) {
  Sandbox box;
  SmallDisk disk(box);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a file system: " << std::strerror(errno);
  const std::string stop = box.dir() + "/stop";
  Process a = Survivor(box, "a", 7 * kGiB, stop), b = Survivor(box, "b", kGiB, box.dir() + "/never");
  ASSERT_TRUE(Works(a));
  ASSERT_TRUE(Works(b));
  const pid_t daemon = box.DaemonPid();
  // Rows that are there may still be changed in the space that they have: until none is left.
  Outcome refused;
  ASSERT_TRUE(WaitUntil("a promise is refused", [&] {
    disk.Fill();
    refused = box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"});
    return refused.exit_code != 0;
  }));
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("leases.db"));
  EXPECT_THAT(refused.err, HasSubstr("make room"));
  // Stopping, looking and ending need no disk.
  EXPECT_EQ(Tenants(box).size(), 2u);
  EXPECT_EQ(box.RunGpumux({"stop", "b"}).exit_code, 0);
  EXPECT_NE(b.Wait().exit_code, 0);
  EXPECT_EQ(box.DaemonPid(), daemon);
  disk.Empty();
  ASSERT_TRUE(WaitUntil("it promises again", [&] {
    return box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}).exit_code == 0;
  }));
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
  ExpectEverythingFree(box);
}

// `path` as it is, read-only for who opens it from now on; seen by this process and what it starts.
class ReadOnly {
 public:
  explicit ReadOnly(std::string path) : path_(std::move(path)) {
    mounted_ = ::mount(path_.c_str(), path_.c_str(), nullptr, MS_BIND, nullptr) == 0;
    read_only_ =
        mounted_ && ::mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
  }
  ~ReadOnly() { End(); }
  bool read_only() const { return read_only_; }
  void End() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    mounted_ = false;
  }

 private:
  std::string path_;
  bool mounted_ = false, read_only_ = false;
};

// Mounts of this process are nobody else's.
bool HasItsOwnMounts() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// A daemon dies, and the next one may read `read_only` alone, below the directory of the daemon's files.
void NoNewPromisesWhile(const std::string& read_only, const char* said) {
  if (!HasItsOwnMounts()) GTEST_SKIP() << "cannot have mounts of its own: " << std::strerror(errno);
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process a = Survivor(box, "a", 7 * kGiB, stop);
  ASSERT_TRUE(Works(a));
  const auto tenants = Tenants(box);
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ReadOnly closed(box.runtime_dir() + "/sim" + read_only);
  ASSERT_TRUE(closed.read_only()) << std::strerror(errno);
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  const Outcome refused = box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"});
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(said));
  EXPECT_FALSE(a.Ended());
  closed.End();
  ASSERT_TRUE(WaitUntil("the next daemon has the lease", [&] { return IsWhole(box, daemon, tenants); }));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
  ExpectEverythingFree(box);
}

TEST(Disk, ThatIsReadOnlyHasNoDaemonUntilItCanBeWritten) { NoNewPromisesWhile("", "Read-only file system"); }

TEST(Disk, WithAStoreThatIsReadOnlyStopsNewPromisesAndNobody) {
  NoNewPromisesWhile("/leases.db", "readonly");
}

// What somebody does to the daemon's files while it runs.
struct Damage {
  const char* name;
  void (*to)(const std::string& dir);
};
class Files : public ::testing::TestWithParam<Damage> {};

TEST_P(Files, ThatAreGoneAreBackAndTheNextDaemonKnowsEveryLease) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim", stop = box.dir() + "/stop";
  Process a = Survivor(box, "a", 7 * kGiB, stop);
  ASSERT_TRUE(Works(a));
  const auto tenants = Tenants(box);
  const pid_t daemon = box.DaemonPid();
  GetParam().to(dir);
  ASSERT_TRUE(WaitUntil("the store has its rows again", [&] {
    return DaemonLog(box).find("was opened anew, with 1 lease(s)") != std::string::npos;
  }));
  ASSERT_TRUE(WaitUntil("it answers", [&] { return Tenants(box) == tenants; }));
  EXPECT_EQ(box.DaemonPid(), daemon);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
  ASSERT_NE(daemon, 0);
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("the next daemon has the lease", [&] { return IsWhole(box, daemon, tenants); }));
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
  ExpectEverythingFree(box);
}

INSTANTIATE_TEST_SUITE_P(
    Damages, Files,
    ::testing::Values(Damage{"directory_removed",
                             [](const std::string& dir) { std::filesystem::remove_all(dir); }},
                      Damage{"two_levels_removed",
                             [](const std::string& dir) {
                               std::filesystem::remove_all(std::filesystem::path(dir).parent_path());
                             }},
                      Damage{"all_files_removed",
                             [](const std::string& dir) {
                               for (const auto& file : std::filesystem::directory_iterator(dir))
                                 std::filesystem::remove(file);
                             }},
                      Damage{"store_replaced",
                             [](const std::string& dir) {
                               std::filesystem::remove(dir + "/leases.db");
                               std::ofstream(dir + "/leases.db") << std::string(8192, 'x');
                             }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gpumux::test
