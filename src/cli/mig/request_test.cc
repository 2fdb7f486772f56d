// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/request.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"

namespace gpumux::cli {
namespace {

TEST(MigRequest, ReadsGpus) {
  const auto gpus = ParseMigGpus("2xH200,NVIDIA A30,0x2901");
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  std::vector<std::string> names;
  for (const auto& gpu : *gpus) names.push_back(gpu.name + " " + gpu.model->key);
  EXPECT_EQ(names, (std::vector<std::string>{"GPU 0 H200", "GPU 1 H200", "GPU 2 A30", "GPU 3 B200"}));
  const auto error = [](const char* text) { return ParseMigGpus(text).error(); };
  EXPECT_EQ(error("").ToString(),
            "--gpu : '' is no count and name; write for example --gpu H200 or --gpu 2xH200,A30");
  EXPECT_EQ(error("H200,").message, "--gpu H200,: '' is no count and name");
  EXPECT_EQ(error("0xH200").code, Code::kNotFound);
  EXPECT_EQ(error("65xH200").message, "--gpu 65xH200: more than 64 GPUs");
  EXPECT_EQ(error("64xH200,A30").message, "--gpu 64xH200,A30: more than 64 GPUs");
  EXPECT_EQ(error("L40S").code, Code::kUnsupported);
  EXPECT_EQ(error("H100").code, Code::kInvalid);
}

TEST(MigRequest, ReadsInstances) {
  const auto wants = ParseMigWants("3x1g.18gb,3g.71gb,2x19");
  ASSERT_TRUE(wants) << wants.error().ToString();
  ASSERT_EQ(wants->size(), 3u);
  EXPECT_EQ((*wants)[0].count, 3u);
  EXPECT_EQ((*wants)[0].profile, "1g.18gb");
  EXPECT_EQ((*wants)[1].count, 1u);
  EXPECT_EQ((*wants)[2].profile, "19");
  for (const char* text : {"", ",", "3x", "x1g.18gb", "0x1g.18gb", "1001x1g.18gb", "99999999999x1g.18gb",
                           "-1x1g.18gb", "3 x1g.18gb", "1g", "3x3x1g.18gb", "1g.18gb;1g.18gb"}) {
    const auto bad = ParseMigWants(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().code, Code::kInvalid) << text;
    EXPECT_FALSE(bad.error().hint.empty()) << text;
  }
}

TEST(MigRequest, ReadsTenants) {
  const auto wants = ParseMigTenants(
      R"({"tenants": [{"name": "serve", "count": 2, "mem": "14GiB", "share": "12.5%", "isolate": "none"},
                      {"profile": "3G.71gb"}]})");
  ASSERT_TRUE(wants) << wants.error().ToString();
  ASSERT_EQ(wants->size(), 2u);
  EXPECT_EQ((*wants)[0].name, "serve");
  EXPECT_EQ((*wants)[0].count, 2u);
  EXPECT_EQ((*wants)[0].bytes, 14 * kGiB);
  EXPECT_DOUBLE_EQ((*wants)[0].share, 0.125);
  EXPECT_TRUE((*wants)[0].shares);
  EXPECT_EQ((*wants)[1].name, "tenant 2");
  EXPECT_EQ((*wants)[1].profile, "3g.71gb");
  EXPECT_FALSE((*wants)[1].shares);
  EXPECT_EQ(ParseMigTenants(R"([{"mem": "1GiB"}])")->size(), 1u);
}

TEST(MigRequest, SaysWhereATenantIsWrong) {
  const auto error = [](const std::string& tenant) {
    const auto wants = ParseMigTenants(R"({"tenants": [{"mem": "1GiB"}, )" + tenant + "]}");
    EXPECT_FALSE(wants) << tenant;
    return wants ? "" : wants.error().ToString();
  };
  EXPECT_EQ(
      error("7"),
      R"(tenants[1] is no object; a tenant is for example {"name": "serve", "count": 2, "mem": "14GiB"})");
  EXPECT_EQ(
      error("{}"),
      R"(tenants[1] needs one of mem, share and profile; a tenant is for example {"name": "serve", "count": 2, "mem": "14GiB"})");
  EXPECT_EQ(error(R"({"mems": "1GiB"})"), "tenants[1].mems: is not known; did you mean mem?");
  EXPECT_EQ(error(R"({"color": "red"})"),
            "tenants[1].color: is not known; known are name, count, mem, share, isolate and profile");
  EXPECT_EQ(error(R"({"mem": 14})"), "tenants[1].mem: is no text");
  EXPECT_EQ(error(R"({"mem": "14"})").substr(0, 29), "tenants[1].mem: '14' has no u");
  EXPECT_EQ(error(R"({"mem": "40%"})"),
            "tenants[1].mem: a part of a GPU is no size here; write for example 14GiB");
  for (const char* share : {"20", "0%", "101%", "-1%", "nan%", "%", "20%%"}) {
    EXPECT_EQ(error(std::string(R"({"share": ")") + share + "\"}"),
              std::string("tenants[1].share: '") + share + "' is no part; write for example 20%");
  }
  EXPECT_EQ(error(R"({"mem": "1GiB", "count": 0})"), "tenants[1].count: is no number from 1 to 1000");
  EXPECT_EQ(error(R"({"mem": "1GiB", "count": 1.5})"), "tenants[1].count: is no number from 1 to 1000");
  EXPECT_EQ(error(R"({"mem": "1GiB", "isolate": "fault"})"),
            "tenants[1].isolate: 'fault' is neither full nor none; full: an instance of its own; none: may "
            "share one "
            "with others that may");
  EXPECT_EQ(error(R"({"mem": "1GiB", "profile": "1g.18gb"})"),
            "tenants[1].profile: says it all: leave out mem and share");
  EXPECT_EQ(error(R"({"profile": "big"})"),
            "tenants[1].profile: 'big' is no MIG profile; write for example 1g.18gb, 3g.71gb or 1g.18gb+me");
  EXPECT_EQ(ParseMigTenants("{").error().message, "this is no JSON");
  for (const char* text :
       {"{}", "[]", R"({"tenants": {}})", R"({"tenants": [{"mem": "1GiB"}], "gpus": 1})", "3"})
    EXPECT_EQ(ParseMigTenants(text).error().message,
              R"(this is not {"tenants": [...]} with a tenant or more)")
        << text;
}

TEST(MigRequest, ReadsFilesOfBoundedSize) {
  const std::string path = testing::TempDir() + "mig_request_" + std::to_string(::getpid());
  std::ofstream(path) << std::string(kMaxMigFileBytes, 'x');
  EXPECT_EQ(ReadMigFile(path)->size(), kMaxMigFileBytes);
  std::ofstream(path, std::ios::app) << 'y';
  EXPECT_EQ(ReadMigFile(path).error().message, path + " is larger than 1024 KiB");
  std::filesystem::remove(path);
  EXPECT_EQ(ReadMigFile(path).error().code, Code::kNotFound);
  EXPECT_EQ(ReadMigFile("/tmp").error().message, "/tmp is a directory");
}

}  // namespace
}  // namespace gpumux::cli
