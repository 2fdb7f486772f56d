// SPDX-License-Identifier: Apache-2.0
//
// A tenant that is client of somebody else's MPS server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "../history/past.h"
#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Clients : public ::testing::Test {
 protected:
  Clients() : other_(box_.dir() + "/other") {
    std::filesystem::create_directories(other_ + "/log");
    const std::string softgpu = Sandbox::Program("../lib/gpumux/softgpu");
    const Outcome started = box_.Run(
        {"/usr/bin/env", "CUDA_MPS_PIPE_DIRECTORY=" + other_, "CUDA_MPS_LOG_DIRECTORY=" + other_ + "/log",
         "LD_LIBRARY_PATH=" + softgpu, softgpu + "/bin/nvidia-cuda-mps-control", "-d"});
    EXPECT_EQ(started.exit_code, 0) << started.out << started.err;
  }
  // A tenant whose program has a context, under the other server if it `strays`.
  Process Tenant(const std::string& name, bool strays, const std::vector<std::string>& options = {}) {
    std::vector<std::string> argv = {"run", "--mode", "mps", "--name", name, "--mem", "4GiB"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.push_back("--");
    if (strays) argv.insert(argv.end(), {"/usr/bin/env", "CUDA_MPS_PIPE_DIRECTORY=" + other_});
    argv.insert(argv.end(), {Sandbox::TestProgram("mps_places_probe"), "late", "/"});
    return box_.Gpumux(argv);
  }
  // What the status says of its memory limit, with the reason.
  std::string Enforced(const std::string& name) {
    const auto status = box_.StatusData();
    for (const auto& tenant : status["tenants"]) {
      if (tenant["name"] != name || tenant["enforced"]["memory"].is_null()) continue;
      return tenant["enforced"]["memory"].get<std::string>() + ": " +
             tenant["enforced"].value("memory_reason", std::string());
    }
    return "";
  }

  MpsBox box_;
  std::string other_;
};

TEST_F(Clients, OneOfAnotherServerIsNotEnforcedAndStoppedIfStrict) {
  Process right = Tenant("right", false);
  Process astray = Tenant("astray", true);
  Process strict = Tenant("strict", true, {"--strict"});
  EXPECT_TRUE(WaitUntil("it is seen", [&] { return Enforced("astray").starts_with("not enforced"); }))
      << Enforced("astray");
  EXPECT_THAT(Enforced("astray"), HasSubstr("is no client of its MPS server"));
  EXPECT_THAT(box_.RunGpumux({"explain", "astray"}).out,
              AllOf(HasSubstr("is no client of its MPS server"), HasSubstr("leave the CUDA_MPS_ variables")));
  EXPECT_NE(strict.Wait().exit_code, 0);
  EXPECT_EQ(Past(box_, "strict")["outcome"], "not-enforced");
  EXPECT_THAT(box_.RunGpumux({"events"}).out, HasSubstr("stopped by --strict: pid"));
  // By the same lists.
  EXPECT_EQ(Enforced("right"), "guard, and MPS for each process: ");
  for (Process* each : {&right, &astray}) {
    each->Signal(SIGTERM);
    each->Wait();
  }
}

}  // namespace
}  // namespace gpumux::test
