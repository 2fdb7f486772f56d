// SPDX-License-Identifier: Apache-2.0
#include "config/sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/units.h"
#include "config/meaning.h"

namespace gpumux::config {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Sources : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpumux-config-XXXXXX";
    ASSERT_TRUE(mkdtemp(name));
    dir_ = name;
    fs::create_directories(dir_ + "/etc/conf.d");
    fs::create_directories(dir_ + "/home/.config/gpumux");
    variables_["HOME"] = dir_ + "/home";
    surroundings_ = {.variable = [this](const char* key) -> const char* {
                       const auto it = variables_.find(key);
                       return it == variables_.end() ? nullptr : it->second.c_str();
                     },
                     .system_dir = dir_ + "/etc"};
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string Write(const std::string& path, const std::string& text, mode_t mode = 0644) {
    std::ofstream(dir_ + path) << text;
    ::chmod((dir_ + path).c_str(), mode);
    return dir_ + path;
  }
  std::vector<std::string> Problems(const Loaded& loaded) {
    std::vector<std::string> out;
    for (const Problem& problem : loaded.problems) out.push_back(problem.ToString());
    return out;
  }
  std::string Value(const Loaded& loaded, const Path& path) {
    const Setting* setting = Find(loaded.settings, path);
    return setting ? FormatValue(setting->value) + " " + setting->origin : "";
  }

  std::string dir_;
  std::map<std::string, std::string> variables_;
  Surroundings surroundings_;
};

const Path kMem = {"run", "mem"};

TEST_F(Sources, MayAllBeMissing) {
  const Loaded loaded = Load(Reader::kUser, surroundings_);
  EXPECT_THAT(loaded.problems, IsEmpty());
  EXPECT_THAT(loaded.settings, IsEmpty());
  EXPECT_THAT(loaded.files, IsEmpty());
}

TEST_F(Sources, VariableBeforeUserBeforeConfDInOrderBeforeSystem) {
  const std::string user = dir_ + "/home/.config/gpumux/config.toml";
  const std::string first = Write("/etc/config.toml", "run.mem = \"1GiB\"\nrun.mode = \"exclusive\"\n");
  EXPECT_EQ(Value(Load(Reader::kUser, surroundings_), kMem), "\"1GiB\" " + first);
  const std::string third = Write("/etc/conf.d/20-b.toml", "run.mem = \"3GiB\"\n");
  const std::string second = Write("/etc/conf.d/10-a.toml", "run.mem = \"2GiB\"\n");
  Write("/etc/conf.d/30-c.toml.disabled", "run.mem = \"9GiB\"\n");
  EXPECT_EQ(Value(Load(Reader::kUser, surroundings_), kMem), "\"3GiB\" " + third);
  Write("/home/.config/gpumux/config.toml", "run.mem = \"4GiB\"\n");
  const Loaded all = Load(Reader::kUser, surroundings_);
  EXPECT_EQ(Value(all, kMem), "\"4GiB\" " + user);
  EXPECT_EQ(Value(all, {"run", "mode"}), "\"exclusive\" " + first);
  EXPECT_THAT(all.files, ElementsAre(first, second, third, user));
  variables_["GPUMUX_MEM"] = "5GiB";
  EXPECT_EQ(Value(Load(Reader::kUser, surroundings_), kMem), "\"5GiB\" GPUMUX_MEM");
  variables_["GPUMUX_MEM"] = "";
  EXPECT_EQ(Value(Load(Reader::kUser, surroundings_), kMem), "\"4GiB\" " + user);
}

TEST_F(Sources, AUsersFileIsNothingToTheMachinesDaemon) {
  Write("/etc/config.toml", "quota.user.ann.memory = \"60GiB\"\n");
  Write("/home/.config/gpumux/config.toml", "quota.user.ann.memory = \"600GiB\"\n");
  EXPECT_EQ(
      PolicyOf(Load(Reader::kMachineDaemon, surroundings_).settings).users.at("ann").quota.guaranteed_bytes,
      60 * kGiB);
  EXPECT_EQ(PolicyOf(Load(Reader::kUser, surroundings_).settings).users.at("ann").quota.guaranteed_bytes,
            600 * kGiB);
}

TEST_F(Sources, TheUsersFileIsWhereXdgSays) {
  fs::create_directories(dir_ + "/xdg/gpumux");
  const std::string there = Write("/xdg/gpumux/config.toml", "run.mem = \"4GiB\"\n");
  variables_["XDG_CONFIG_HOME"] = dir_ + "/xdg";
  EXPECT_THAT(Load(Reader::kUser, surroundings_).files, ElementsAre(there));
  variables_["XDG_CONFIG_HOME"] = "xdg";  // relative: none
  EXPECT_THAT(Load(Reader::kUser, surroundings_).files, IsEmpty());
}

TEST_F(Sources, OneFileInsteadOfAll) {
  Write("/etc/config.toml", "run.mem = \"1GiB\"\n");
  const std::string only = Write("/only.toml", "run.mode = \"exclusive\"\n");
  variables_["GPUMUX_CONFIG"] = only;
  const Loaded loaded = Load(Reader::kUser, surroundings_);
  EXPECT_THAT(loaded.files, ElementsAre(only));
  EXPECT_EQ(Value(loaded, kMem), "");
  variables_["GPUMUX_CONFIG"] = dir_ + "/none.toml";
  EXPECT_THAT(Problems(Load(Reader::kUser, surroundings_)),
              ElementsAre(HasSubstr("none.toml: cannot be read")));
  variables_["GPUMUX_CONFIG"] = "only.toml";
  EXPECT_THAT(Problems(Load(Reader::kUser, surroundings_)),
              ElementsAre(HasSubstr("GPUMUX_CONFIG: 'only.toml' is no absolute path")));
}

TEST_F(Sources, WhatOthersCanWriteIsNotObeyed) {
  const std::string text = "run.mem = \"1GiB\"\n";
  Write("/etc/config.toml", text, 0666);
  for (const Reader reader : {Reader::kUser, Reader::kMachineDaemon}) {
    const Loaded loaded = Load(reader, surroundings_);
    EXPECT_THAT(Problems(loaded), ElementsAre(HasSubstr("config.toml: can be written by everybody")));
    EXPECT_THAT(loaded.settings, IsEmpty());
  }
  Write("/etc/config.toml", text, 0664);
  EXPECT_THAT(Problems(Load(Reader::kUser, surroundings_)), IsEmpty());
  EXPECT_THAT(Problems(Load(Reader::kMachineDaemon, surroundings_)),
              ElementsAre(HasSubstr("can be written by its group; make it root's, with mode 0644")));
  Write("/etc/config.toml", text, 0644);
  EXPECT_THAT(Problems(Load(Reader::kMachineDaemon, surroundings_)), IsEmpty());
  ::chmod((dir_ + "/etc").c_str(), 0777);
  EXPECT_THAT(Problems(Load(Reader::kMachineDaemon, surroundings_)),
              ElementsAre(HasSubstr("/etc: can be written by everybody")));
}

TEST_F(Sources, WhatIsAnotherUsersIsNotObeyed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: gives a file to another user";
  const std::string path = Write("/etc/config.toml", "run.mem = \"1GiB\"\n");
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  for (const Reader reader : {Reader::kUser, Reader::kMachineDaemon})
    EXPECT_THAT(Problems(Load(reader, surroundings_)), ElementsAre(HasSubstr("belongs to uid 12345")));
}

TEST_F(Sources, WhatIsNoFileIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((dir_ + "/etc/config.toml").c_str(), 0644), 0);
  fs::create_directories(dir_ + "/etc/conf.d/x.toml");
  EXPECT_THAT(Problems(Load(Reader::kUser, surroundings_)),
              ElementsAre(HasSubstr("config.toml: is not a file"), HasSubstr("x.toml: is not a file")));
}

TEST_F(Sources, AllProblemsOfAllFilesAreTold) {
  const std::string a = Write("/etc/config.toml", "x = 1\ny = 2\n");
  Write("/home/.config/gpumux/config.toml", "run.mem = 3\nrun.mode = \"exclusive\"\n");
  const Loaded loaded = Load(Reader::kUser, surroundings_);
  EXPECT_EQ(loaded.problems.size(), 3u);
  EXPECT_EQ(loaded.settings.size(), 1u);
  const Error error = ErrorOf(loaded.problems);
  EXPECT_EQ(error.code, Code::kInvalid);
  EXPECT_EQ(error.ToString(), a + ":1:1: there is no key x; gpumux config example shows all there are; and 2 "
                                  "more: gpumux config check "
                                  "shows them");
}

}  // namespace
}  // namespace gpumux::config
