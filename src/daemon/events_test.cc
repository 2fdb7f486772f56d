// SPDX-License-Identifier: Apache-2.0
#include "daemon/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

namespace gpumux::daemon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EventsTest : public testing::Test {
 protected:
  EventsTest() {
    char name[] = "/tmp/gpumux-events-XXXXXX";
    dir = ::mkdtemp(name);
    path = dir + "/audit.log";
    events = std::make_unique<EventLog>(path, clock);
  }
  ~EventsTest() override {
    Close();
    std::filesystem::remove_all(dir);
  }

  // The writer has written all of it when the log is gone.
  void Close() { events.reset(); }
  std::vector<std::string> Lines(const std::string& file) {
    std::ifstream in(file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  static Event Of(EventKind kind, std::optional<uid_t> by = {}, std::string text = "text") {
    return {.kind = kind, .text = std::move(text), .by = by};
  }
  size_t Kept(uid_t by) const {
    return static_cast<size_t>(std::count_if(events->kept().begin(), events->kept().end(),
                                             [&](const Event& event) { return event.by == by; }));
  }

  std::string dir, path;
  ManualClock clock;
  std::unique_ptr<EventLog> events;
};

TEST_F(EventsTest, EveryEventIsALineOfTheAuditLog) {
  Event event = Of(EventKind::kGranted, 1234, "40 GiB guaranteed");
  event.tenant = "t-1";
  event.tenant_name = "train";
  event.owner = 1234;
  event.gpus = {*gpu::ParseUuid("GPU-0fa4e000-0000-0000-0000-000000000001")};
  events->Note(event);
  events->Note(Of(EventKind::kAtRisk, {}, "a line\nforged \xff"));
  Close();
  struct stat stat{};
  ASSERT_EQ(::stat(path.c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 07777, 0600u);
  const auto lines = Lines(path);
  ASSERT_EQ(lines.size(), 2u);
  const auto first = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(first["id"], 1);
  EXPECT_EQ(first["at"], "1970-01-01T00:00:01.000Z");
  EXPECT_EQ(first["kind"], "granted");
  EXPECT_EQ(first["severity"], "info");
  EXPECT_EQ(first["tenant"], "t-1");
  EXPECT_EQ(first["user"], "1234");
  EXPECT_EQ(first["gpus"][0], "GPU-0fa4e000-0000-0000-0000-000000000001");
  const auto second = nlohmann::json::parse(lines[1]);
  EXPECT_EQ(second["severity"], "error");
  EXPECT_EQ(second["tenant"], nullptr);
  EXPECT_EQ(second["text"], "a line\nforged \xEF\xBF\xBD");
}

TEST_F(EventsTest, TheNextDaemonKnowsTheLastEventsAndNumbersOn) {
  events->Note(Of(EventKind::kGranted, 7));
  events->Note(Of(EventKind::kEnded, 7));
  Close();
  // What is no line of ours is nothing: a number backwards, one near the end of the range, garbage.
  std::ofstream(path, std::ios::app) << "{\"id\":1}\n[]\n\xff\x00garbage\n"
                                     << EventJson([] {
                                          Event event = Of(EventKind::kEnded, {}, "far");
                                          event.id = UINT64_MAX;
                                          return event;
                                        }())
                                     << "\nhalf a li";
  events = std::make_unique<EventLog>(path, clock);
  events->Note(Of(EventKind::kTakenOver));
  std::vector<std::pair<uint64_t, EventKind>> kept;
  for (const Event& event : events->kept()) kept.emplace_back(event.id, event.kind);
  EXPECT_THAT(kept, ElementsAre(std::pair(1, EventKind::kGranted), std::pair(2, EventKind::kEnded),
                                std::pair(3, EventKind::kTakenOver)));
  EXPECT_EQ(events->kept()[0].by, std::optional<uid_t>(7));
}

TEST_F(EventsTest, OneUserCannotFloodTheLog) {
  for (int i = 0; i < 10'000; ++i) events->Note(Of(EventKind::kRefused, 7));
  events->Note(Of(EventKind::kGranted, 8));
  events->Note(Of(EventKind::kAtRisk));
  EXPECT_EQ(Kept(7), static_cast<size_t>(EventLog::kBurst));
  EXPECT_EQ(Kept(8), 1u);
  // It says once how much was left out, when there is room again.
  events->Tick();
  EXPECT_EQ(events->kept().back().kind, EventKind::kAtRisk);
  clock.Advance(std::chrono::seconds(1));
  events->Tick();
  events->Tick();
  EXPECT_EQ(events->kept().back().kind, EventKind::kSuppressed);
  EXPECT_THAT(events->kept().back().text, HasSubstr("9744 more events"));
  EXPECT_EQ(Kept(7), static_cast<size_t>(EventLog::kBurst) + 1);
}

TEST_F(EventsTest, OneUserCannotPushOutTheEventsOfOthers) {
  events->Note(Of(EventKind::kGranted, 8));
  for (size_t i = 0; i < 2 * EventLog::kMaxKept; ++i) {
    clock.Advance(std::chrono::seconds(1));
    events->Note(Of(EventKind::kRefused, 7));
  }
  EXPECT_EQ(events->kept().size(), EventLog::kMaxKept);
  EXPECT_EQ(Kept(8), 1u);
  EXPECT_EQ(events->kept().back().id, 1 + 2 * EventLog::kMaxKept);
}

TEST_F(EventsTest, AnAuditLogThatCannotBeWrittenIsAnEventAndItsReturnToo) {
  events = std::make_unique<EventLog>(dir + "/missing/audit.log", clock);
  events->Note(Of(EventKind::kGranted, 7));
  const auto last = [&](EventKind kind) {
    for (int i = 0; i < 10'000; ++i) {
      events->Tick();
      if (events->kept().back().kind == kind) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  };
  ASSERT_TRUE(last(EventKind::kAuditFailed));
  EXPECT_THAT(events->kept().back().text, HasSubstr("No such file"));
  std::filesystem::create_directory(dir + "/missing");
  events->Note(Of(EventKind::kGranted, 7));
  ASSERT_TRUE(last(EventKind::kAuditWorks));
  // The first, and perhaps the one that said so.
  EXPECT_THAT(events->kept().back().text, testing::ContainsRegex("; [12] lines"));
}

TEST_F(EventsTest, TheAuditLogIsTurnedOverAndStaysBounded) {
  Close();
  const std::string line(99, 'x');
  {
    AuditLog audit(path, 1000);
    for (int i = 0; i < 100; ++i) audit.Append(line);
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    ++files;
    EXPECT_LE(entry.file_size(), 1000u);
    for (const std::string& each : Lines(entry.path())) EXPECT_EQ(each, line);
  }
  EXPECT_EQ(files, 1u + AuditLog::kOlderFiles);
  EXPECT_EQ(Lines(path + ".1").size(), 10u);
}

TEST_F(EventsTest, TheAuditLogFollowsAFileThatWasMovedAway) {
  Close();
  AuditLog audit(path);
  audit.Append("one");
  for (int i = 0; i < 10'000 && Lines(path).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::rename(path, dir + "/kept");
  audit.Append("two");
  for (int i = 0; i < 10'000 && Lines(path).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(Lines(dir + "/kept"), ElementsAre("one"));
  EXPECT_THAT(Lines(path), ElementsAre("two"));
}

TEST_F(EventsTest, TheAuditLogIsNeverALinkOrAPipe) {
  Close();
  std::filesystem::create_symlink(dir + "/elsewhere", path);
  std::string problem;
  {
    AuditLog audit(path);
    audit.Append("line");
    for (int i = 0; i < 10'000 && audit.state().problem.empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(audit.state().lost, 1u);
  }
  EXPECT_FALSE(std::filesystem::exists(dir + "/elsewhere"));
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  AuditLog audit(path);
  audit.Append("line");
  for (int i = 0; i < 10'000 && audit.state().problem.empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(audit.state().lost, 1u);
}

}  // namespace
}  // namespace gpumux::daemon
