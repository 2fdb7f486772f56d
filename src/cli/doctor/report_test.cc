// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/doctor/elf_file.h"
#include "cli/doctor/files.h"

namespace gpumux::cli::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Finding Of(const char* id, Verdict verdict) { return {{id, "gpu", "", nullptr}, std::move(verdict)}; }

const std::vector<Finding> kFindings = {
    Of("gpu-one", Ok("fine")),
    Of("gpu-second",
       Bad("one two three four five six seven eight nine ten", "a fix that is longer than the terminal")),
    Of("gpu-x", Warn("\x1b[2Jevil", "")),
    Of("gpu-y", Skip("nothing there")),
};

TEST(DoctorReport, ALineForEachItsFixAndACount) {
  EXPECT_EQ(Render(kFindings, {.is_tty = false, .color = false, .width = 0}, false),
            "gpu-one     ok    fine\n"
            "gpu-second  FAIL  one two three four five six seven eight nine ten\n"
            "                  fix: a fix that is longer than the terminal\n"
            "gpu-x       warn  ?[2Jevil\n"
            "gpu-y       skip  nothing there\n"
            "4 checks: 1 ok, 1 warning, 1 failed, 1 skipped\n"
            "more about it: docs/guide/troubleshooting.md#gpu-second\n");
}

TEST(DoctorReport, WrapsEvidenceAndNeverAFix) {
  const std::string text = Render(kFindings, {.is_tty = true, .color = false, .width = 45}, false);
  EXPECT_THAT(text, HasSubstr("gpu-second  FAIL  one two three four five six\n"
                              "                  seven eight nine ten\n"
                              "                  fix: a fix that is longer than the terminal\n"));
}

TEST(DoctorReport, QuietSaysWhatIsWrongAlone) {
  const std::string text = Render(kFindings, {.is_tty = false, .color = false, .width = 0}, true);
  EXPECT_THAT(text, HasSubstr("gpu-second"));
  EXPECT_THAT(text, HasSubstr("gpu-x"));
  EXPECT_THAT(text, Not(HasSubstr("gpu-one")));
  EXPECT_THAT(text, Not(HasSubstr("checks")));
}

TEST(DoctorReport, ColoursOnlyWhereTheTerminalHasThem) {
  EXPECT_THAT(Render(kFindings, {.is_tty = true, .color = true, .width = 0}, false),
              HasSubstr("\x1b[31mFAIL \x1b[0m"));
  EXPECT_THAT(Render(kFindings, {.is_tty = true, .color = false, .width = 0}, false), Not(HasSubstr("\x1b")));
}

TEST(DoctorReport, ExitStatusTellsWarnFailAndCouldNotLookApart) {
  const auto of = [](std::vector<Verdict> verdicts, bool strict) {
    std::vector<Finding> findings;
    for (Verdict& verdict : verdicts) findings.push_back(Of("gpu-x", std::move(verdict)));
    return ExitStatusOf(findings, strict);
  };
  EXPECT_EQ(of({Ok("a"), Skip("b")}, true), 0);
  EXPECT_EQ(of({Warn("a", "b")}, false), 0);
  EXPECT_EQ(of({Warn("a", "b")}, true), 1);
  EXPECT_EQ(of({Bad("a", "b"), CannotTell("c")}, false), 1);
  EXPECT_EQ(of({Ok("a"), CannotTell("c")}, false), 3);
}

TEST(DoctorReport, JsonHasEveryCheckAndTheCounts) {
  const auto json = nlohmann::json::parse(FindingsJson(kFindings, 42));
  EXPECT_EQ(json["pid"], 42);
  EXPECT_EQ(json["checks"].size(), 4u);
  EXPECT_EQ(json["checks"][1]["doc"], "docs/guide/troubleshooting.md#gpu-second");
  EXPECT_TRUE(json["checks"][0]["fix"].is_null());
  EXPECT_EQ(json["counts"]["fail"], 1);
  EXPECT_EQ(json["counts"]["error"], 0);
}

TEST(DoctorFiles, ComparesVersionsByNumber) {
  EXPECT_TRUE(OlderThan("2.9", "2.17"));
  EXPECT_FALSE(OlderThan("2.17", "2.17"));
  EXPECT_FALSE(OlderThan("2.17.1", "2.17"));
  EXPECT_EQ(VersionIn("NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue"), "580.159.04");
  EXPECT_EQ(VersionIn("none"), "");
  EXPECT_EQ(NewestOf({"2.2.5", "2.17", "2.9"}), "2.17");
}

}  // namespace
}  // namespace gpumux::cli::doctor
