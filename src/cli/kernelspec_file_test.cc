// SPDX-License-Identifier: Apache-2.0
#include "cli/kernelspec_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace gpumux::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using Json = nlohmann::json;

class KernelspecTest : public ::testing::Test {
 protected:
  KernelspecTest() {
    char name[] = "/tmp/gpumux-test-kernels-XXXXXX";
    root_ = ::mkdtemp(name);
    kernels_ = root_ + "/share/jupyter/kernels";
  }
  ~KernelspecTest() override { fs::remove_all(root_); }

  KernelSpec Spec(const std::string& name = "gpu") const {
    return {
        .name = name, .mem = "8GiB", .gpumux = "/opt/gpumux", .python = "/opt/python3", .run_options = {}};
  }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(kernels_ + "/" + path).parent_path());
    std::ofstream(kernels_ + "/" + path) << text;
  }
  std::string Read(const std::string& path) const {
    std::ifstream file(kernels_ + "/" + path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string root_, kernels_;
};

TEST(UserKernels, IsWhereJupyterLooks) {
  EXPECT_EQ(UserKernels("/j", "/x", "/h").value(), "/j/kernels");
  EXPECT_EQ(UserKernels("", "/x", "/h").value(), "/x/jupyter/kernels");
  EXPECT_EQ(UserKernels(nullptr, nullptr, "/h").value(), "/h/.local/share/jupyter/kernels");
  EXPECT_FALSE(UserKernels(nullptr, "", nullptr));
}

TEST(KernelName, IsOneForJupyterAndForATenant) {
  for (const char* name : {"gpumux", "gpu-8gib", "a.b_c"}) EXPECT_TRUE(CheckKernelName(name)) << name;
  for (const char* name : {"", ".", "..", "a/b", "../x", "A", "a b", "a\n"})
    EXPECT_FALSE(CheckKernelName(name)) << name;
  EXPECT_FALSE(CheckKernelName(std::string(65, 'a')));
}

TEST_F(KernelspecTest, StartsTheKernelThroughRun) {
  KernelSpec spec = Spec();
  spec.run_options = {"--priority", "best-effort"};
  const Json json = Json::parse(KernelJson(spec).dump());
  EXPECT_THAT(json["argv"].get<std::vector<std::string>>(),
              ElementsAre("/opt/gpumux", "run", "--quiet", "--own-group", "--name", "gpu", "--mem", "8GiB",
                          "--priority", "best-effort", "--", "/opt/python3", "-m", "ipykernel_launcher", "-f",
                          "{connection_file}"));
  EXPECT_EQ(json["language"], "python");
  EXPECT_EQ(json["interrupt_mode"], "signal");
  spec.mem = "";
  const std::string without = KernelJson(spec)["argv"].dump();
  EXPECT_EQ(without.find("--mem"), std::string::npos) << without;
}

TEST_F(KernelspecTest, WritesListsAndRemovesItsOwn) {
  ASSERT_TRUE(WriteKernel(kernels_, Spec("one")));
  ASSERT_TRUE(WriteKernel(kernels_, Spec("two")));
  EXPECT_EQ(Read("one/kernel.json"), KernelJson(Spec("one")).dump(1) + "\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(kernels_ + "/one"), {}), 1) << "nothing else is left there";
  Write("other/kernel.json", R"({"argv":["python3"],"display_name":"Other","language":"python"})");
  ASSERT_EQ(KernelsIn(kernels_).size(), 2u);
  EXPECT_EQ(KernelsIn(kernels_)[0].name, "one");
  // Again, with other figures.
  KernelSpec more = Spec("one");
  more.mem = "20GiB";
  ASSERT_TRUE(WriteKernel(kernels_, more));
  EXPECT_EQ(KernelsIn(kernels_)[0].content()["metadata"]["gpumux"]["mem"], "20GiB");
  EXPECT_EQ(RemoveKernel(kernels_, "one").value(), true);
  EXPECT_FALSE(fs::exists(kernels_ + "/one"));
  EXPECT_EQ(RemoveKernel(kernels_, "one").error().code, Code::kNotFound);
  EXPECT_TRUE(KernelsIn(root_ + "/nowhere").empty());
}

TEST_F(KernelspecTest, LeavesWhatOthersMade) {
  const std::string theirs = R"({"argv":["python3"],"display_name":"Other","language":"python"})";
  Write("gpu/kernel.json", theirs);
  EXPECT_EQ(WriteKernel(kernels_, Spec()).error().code, Code::kConflict);
  EXPECT_EQ(RemoveKernel(kernels_, "gpu").error().code, Code::kConflict);
  EXPECT_EQ(Read("gpu/kernel.json"), theirs);
  // Neither one that is no JSON, nor a directory without one.
  Write("broken/kernel.json", "{");
  EXPECT_FALSE(WriteKernel(kernels_, Spec("broken")));
  Write("logo/logo-64x64.png", "x");
  EXPECT_FALSE(WriteKernel(kernels_, Spec("logo")));
  EXPECT_FALSE(fs::exists(kernels_ + "/logo/kernel.json"));
  fs::create_directory(kernels_ + "/empty");
  EXPECT_TRUE(WriteKernel(kernels_, Spec("empty")));
  // What others put beside ours stays.
  Write("empty/logo-64x64.png", "x");
  EXPECT_EQ(RemoveKernel(kernels_, "empty").value(), false);
  EXPECT_EQ(Read("empty/logo-64x64.png"), "x");
}

TEST_F(KernelspecTest, SaysWhyItCannotWrite) {
  std::ofstream(root_ + "/file") << "x";
  const Status status = WriteKernel(root_ + "/file/kernels", Spec());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInternal);
}

}  // namespace
}  // namespace gpumux::cli
