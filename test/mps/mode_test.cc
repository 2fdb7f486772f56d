// SPDX-License-Identifier: Apache-2.0
//
// `gpumux run --mode mps` on the software GPU: a real control daemon, a real
// server, real clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// A word for the state that nothing asks of a test: an object or null.
Json FindTenant(Sandbox& box, const std::string& name) {
  const Json status = box.StatusData();
  for (const Json& tenant : status["tenants"]) {
    if (tenant["name"] == name) return tenant;
  }
  return nullptr;
}

std::string Enforced(Sandbox& box, const std::string& name) {
  const Json tenant = FindTenant(box, name);
  if (tenant.is_null() || tenant["enforced"]["memory"].is_null()) return "";
  return tenant["enforced"]["memory"].get<std::string>();
}

std::vector<std::string> Mps(const std::string& name, const std::vector<std::string>& options,
                             const std::vector<std::string>& program) {
  std::vector<std::string> args{"run", "--mode", "mps", "--name", name};
  args.insert(args.end(), options.begin(), options.end());
  args.push_back("--");
  args.push_back(Sandbox::Program("gpumux-workload"));
  args.insert(args.end(), program.begin(), program.end());
  return args;
}

TEST(MpsMode, ATenantIsAClientWithItsLimits) {
  Sandbox box;
  Process holder =
      box.Gpumux(Mps("a", {"--mem", "8GiB", "--share", "40%"}, {"--alloc", "1GiB", "--hold", "60"}));
  WaitUntil("it is enforced", [&] { return Enforced(box, "a") == "guard, and MPS for each process"; });
  const Json tenant = FindTenant(box, "a");
  EXPECT_EQ(tenant["mode"], "mps");
  const Json status = box.StatusData();
  // The server is nobody's stranger, and its bytes are counted.
  EXPECT_EQ(status["gpus"][0]["mode"], "mps");
  EXPECT_TRUE(status["gpus"][0]["strangers"].empty()) << status["gpus"][0];
  EXPECT_GT(status["gpus"][0]["mem_unmanaged_bytes"], 60 << 20);
  holder.Signal(SIGTERM);
  holder.Wait();
}

TEST(MpsMode, KernelsOfTwoTenantsRunAtOnce) {
  Sandbox box;
  const auto start = std::chrono::system_clock::now() + std::chrono::seconds(1);
  const double epoch = std::chrono::duration<double>(start.time_since_epoch()).count();
  // One kernel each, so long that it does not matter how busy this machine is.
  const std::vector<std::string> load{
      "--kernel-us", "1000000",   "--blocks", "33",         "--threads",
      "1024",        "--seconds", "0.1",      "--start-at", std::to_string(epoch),
      "--json"};
  Process first = box.Gpumux(Mps("first", {"--mem", "4GiB"}, load));
  Process second = box.Gpumux(Mps("second", {"--mem", "4GiB"}, load));
  for (Process* each : {&first, &second}) {
    const Outcome o = each->Wait();
    ASSERT_EQ(o.exit_code, 0) << o.err;
    // Taking turns they would take twice their time.
    EXPECT_LT(Json::parse(o.out)["max_us"], 1'600'000);
  }
}

TEST(MpsMode, WhoMissesTheDaemonIsNotEnforced) {
  Sandbox box;
  const std::string work = Sandbox::Program("gpumux-workload");
  Process holder = box.Gpumux({"run", "--mode", "mps", "--mem", "8GiB", "--name", "lost", "--", "env",
                               "CUDA_MPS_PIPE_DIRECTORY=/nowhere", work, "--hold", "60"});
  WaitUntil("it is seen", [&] { return Enforced(box, "lost") == "not enforced"; });
  EXPECT_THAT(FindTenant(box, "lost")["enforced"]["memory_reason"].get<std::string>(),
              HasSubstr("runs outside MPS"));
  holder.Signal(SIGTERM);
  holder.Wait();
  // A strict one gets no context there.
  const Outcome strict = box.RunGpumux({"run", "--mode", "mps", "--strict", "--mem", "8GiB", "--", "env",
                                        "CUDA_MPS_PIPE_DIRECTORY=/nowhere", work});
  EXPECT_NE(strict.exit_code, 0);
  EXPECT_THAT(strict.err, HasSubstr("MPS_CONNECTION_FAILED"));
}

// A program can take its own limits off; what the driver tells it then is read back.
TEST(MpsMode, WhoTakesItsLimitsOffIsNotEnforced) {
  Sandbox box;
  const std::string work = Sandbox::Program("gpumux-workload");
  const auto start = [&](const std::string& name, const std::vector<std::string>& off) {
    std::vector<std::string> args{"run", "--mode", "mps", "--mem", "8GiB", "--share",
                                  "40%", "--name", name,  "--",    "env"};
    args.insert(args.end(), off.begin(), off.end());
    args.insert(args.end(), {work, "--hold", "60"});
    return box.Gpumux(args);
  };
  Process more_sms = start("sms", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60"});
  Process more_memory = start("memory", {"-u", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"});
  Process neither = start("neither", {"UNRELATED=1"});
  for (const char* name : {"sms", "memory"})
    WaitUntil("it is seen", [&] { return Enforced(box, name) == "not enforced"; });
  // Of 132, an even number each.
  EXPECT_THAT(FindTenant(box, "sms")["enforced"]["memory_reason"].get<std::string>(),
              HasSubstr("may use 78 multiprocessors of GPU 0, not 52"));
  EXPECT_THAT(FindTenant(box, "memory")["enforced"]["memory_reason"].get<std::string>(),
              HasSubstr("the memory limit of MPS is not in force for pid "));
  WaitUntil("it is seen", [&] { return Enforced(box, "neither") == "guard, and MPS for each process"; });
  // A strict one is stopped.
  const Outcome strict =
      box.RunGpumux({"run", "--mode", "mps", "--mem", "8GiB", "--share", "40%", "--strict", "--summary", "--",
                     "env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60", work, "--hold", "60"});
  EXPECT_EQ(strict.exit_code, 128 + SIGTERM);
  EXPECT_THAT(strict.err, HasSubstr("may use 78 multiprocessors of GPU 0, not 52"));
  for (Process* each : {&more_sms, &more_memory, &neither}) {
    each->Signal(SIGTERM);
    each->Wait();
  }
}

TEST(MpsMode, ClientSlotsAreCounted) {
  Sandbox box;
  Process many = box.Gpumux(Mps("many", {"--mem", "40GiB", "--processes", "47"}, {"--hold", "60"}));
  WaitUntil("it runs", [&] { return !Enforced(box, "many").empty(); });
  const Outcome two = box.RunGpumux(Mps("two", {"--mem", "4GiB", "--processes", "2", "--no-wait"}, {}));
  EXPECT_EQ(two.exit_code, 4);
  EXPECT_THAT(two.err, HasSubstr("47 of 48 MPS clients"));
  const Outcome one = box.RunGpumux(Mps("one", {"--mem", "4GiB", "--no-wait"}, {}));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  const Outcome never = box.RunGpumux(Mps("never", {"--mem", "100GiB", "--processes", "49"}, {}));
  EXPECT_EQ(never.exit_code, 4);
  many.Signal(SIGTERM);
  many.Wait();
}

TEST(MpsMode, TheNextDaemonTakesTheServerOver) {
  Sandbox box;
  Process holder = box.Gpumux(Mps("a", {"--mem", "8GiB"}, {"--alloc", "1GiB", "--hold", "60"}));
  WaitUntil("it runs", [&] { return !Enforced(box, "a").empty(); });
  kill(box.DaemonPid(), SIGKILL);
  // Whoever comes next starts a daemon, and is a client of the same server.
  const Outcome next = box.RunGpumux(Mps("b", {"--mem", "8GiB"}, {"--alloc", "1GiB", "--verify"}));
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_EQ(Enforced(box, "a"), "guard, and MPS for each process");
  const Json status = box.StatusData();
  EXPECT_TRUE(status["gpus"][0]["strangers"].empty()) << status["gpus"][0];
  holder.Signal(SIGTERM);
  holder.Wait();
}

// A control daemon of a user serves that user alone.
TEST(MpsMode, OfAUsersDaemonIsForNobodyElse) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become two users";
  Sandbox ann, bob;
  ann.SetUser(23001);
  bob.SetUser(23002);
  bob.ShareGpuOf(ann);
  Process holder = ann.Gpumux(Mps("anns", {"--mem", "8GiB"}, {"--alloc", "1GiB", "--hold", "60"}));
  WaitUntil("it is a client", [&] { return Enforced(ann, "anns") == "guard, and MPS for each process"; });
  const Outcome refused = bob.RunGpumux(Mps("bobs", {"--mem", "8GiB", "--no-wait"}, {}));
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("23001"));
  EXPECT_FALSE(holder.Ended());
  holder.Signal(SIGTERM);
  holder.Wait();
}

TEST(MpsMode, WhatItCannotKeepIsRefused) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux(Mps("a", {"--share", "40%:60%"}, {})).exit_code, 7);
  EXPECT_EQ(box.RunGpumux(Mps("a", {"--isolate", "fault"}, {})).exit_code, 7);
  EXPECT_EQ(box.RunGpumux(Mps("a", {"--share", "none"}, {})).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"run", "--share", "40%", "--", "true"}).exit_code, 7);
}

}  // namespace
}  // namespace gpumux::test
