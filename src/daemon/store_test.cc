// SPDX-License-Identifier: Apache-2.0
#include "daemon/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "daemon/lease_record.h"

namespace gpumux::daemon {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    char name[] = "/tmp/gpumux-store.XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~StoreTest() override { std::filesystem::remove_all(dir_); }
  std::string path() const { return dir_ + "/leases.db"; }
  std::string dir_;
};

TEST_F(StoreTest, KeepsRowsInTheOrderInWhichTheyCame) {
  {
    Store store(path());
    ASSERT_TRUE(store.Put("b", "1"));
    ASSERT_TRUE(store.Put("a", "2"));
    ASSERT_TRUE(store.Put("c", "3"));
    ASSERT_TRUE(store.Put("b", "4"));
    ASSERT_TRUE(store.Remove("a"));
    ASSERT_TRUE(store.Remove("never there"));
  }
  Store again(path());
  const auto rows = again.All();
  ASSERT_TRUE(rows);
  EXPECT_EQ(*rows, (std::vector<std::pair<std::string, std::string>>{{"b", "4"}, {"c", "3"}}));
}

TEST_F(StoreTest, WhatIsFinishedIsNoLeaseAnyMoreAndWaits) {
  {
    Store store(path());
    ASSERT_TRUE(store.Put("a", "lease a"));
    ASSERT_TRUE(store.Put("b", "lease b"));
    ASSERT_TRUE(store.Finish("a", "past a"));
  }
  using Rows = std::vector<std::pair<std::string, std::string>>;
  Store again(path());
  EXPECT_EQ(*again.All(), (Rows{{"b", "lease b"}}));
  EXPECT_EQ(*again.Finished(), (Rows{{"a", "past a"}}));
  ASSERT_TRUE(again.Forget("a"));
  EXPECT_EQ(*again.Finished(), Rows{});
}

TEST_F(StoreTest, TakesAnyBytes) {
  Store store(path());
  const std::string odd("'; DROP TABLE leases; --\0\xff", 27);
  ASSERT_TRUE(store.Put(odd, odd));
  EXPECT_EQ((*store.All())[0].second, odd);
}

TEST_F(StoreTest, IsNobodyElsesToRead) {
  const mode_t before = umask(0);
  Store store(path());
  ASSERT_TRUE(store.Put("a", "1"));
  umask(before);
  for (const auto& file : std::filesystem::directory_iterator(dir_)) {
    EXPECT_EQ(file.status().permissions() & std::filesystem::perms(077), std::filesystem::perms::none)
        << file.path();
  }
}

TEST_F(StoreTest, RefusesWhatItCannotWrite) {
  Store store(dir_ + "/no/such/folder/leases.db");
  const Status put = store.Put("a", "1");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kUnavailable);
  EXPECT_FALSE(store.All());
}

// The first bytes that differ between two layouts of the file: its own number.
void SetSchema(const std::string& path, int schema) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  const std::string sql = "PRAGMA user_version=" + std::to_string(schema);
  ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
}

std::string Bytes(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST_F(StoreTest, OfALaterReleaseIsRefusedAndStaysAsItIs) {
  {
    ASSERT_TRUE(Store(path()).Put("a", "1"));
  }
  SetSchema(path(), 1000);
  const std::string before = Bytes(path());
  {
    Store store(path());
    const Status put = store.Put("b", "2");
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, Code::kUnavailable);
    EXPECT_FALSE(store.All());
  }
  EXPECT_EQ(Bytes(path()), before);
  EXPECT_FALSE(std::filesystem::exists(path() + ".broken"));
  SetSchema(path(), 1);
  EXPECT_EQ(Store(path()).All()->size(), 1u);
}

TEST_F(StoreTest, OfBeforeThereWereNumbersIsRead) {
  {
    ASSERT_TRUE(Store(path()).Put("a", "1"));
  }
  SetSchema(path(), 0);
  Store store(path());
  EXPECT_EQ(store.All()->size(), 1u);
  EXPECT_TRUE(store.Put("b", "2"));
}

TEST_F(StoreTest, ReadsNoRowThatNoDaemonWrites) {
  Store store(path());
  ASSERT_TRUE(store.Put("huge", std::string(3 << 20, 'x')));
  ASSERT_TRUE(store.Put(std::string(1000, 'i'), "1"));
  ASSERT_TRUE(store.Put("a", "1"));
  ASSERT_EQ(store.All()->size(), 1u);
  EXPECT_EQ((*store.All())[0].first, "a");
}

TEST_F(StoreTest, KnowsThatItsFileIsGoneAndIsOpenedAnew) {
  Store store(path());
  ASSERT_TRUE(store.Put("a", "1"));
  EXPECT_TRUE(store.InPlace());
  std::filesystem::remove(path());
  EXPECT_FALSE(store.InPlace());
  store.Reopen();
  EXPECT_TRUE(store.InPlace());
  EXPECT_TRUE(store.All()->empty());
  ASSERT_TRUE(store.Put("b", "2"));
  EXPECT_TRUE(std::filesystem::exists(path()));
}

LeaseRecord Example() {
  LeaseRecord record;
  record.id = "t-0123456789ab";
  record.uid = 1000;
  record.run = {100, 5};
  record.child = ProcessName{101, 6};
  record.mode = core::Mode::kExclusive;
  record.mode_reason = "asked for";
  core::Share share;
  share.gpu.bytes[3] = 7;
  share.guaranteed_bytes = 1 << 30;
  record.shares = {share, share};
  record.shares[1].limit_bytes = 2u << 30;
  record.peak_bytes = {1, 2};
  record.request = R"({"name":"a"})";
  record.admitted = Time(123456789);
  record.waited_seconds = 1.5;
  record.guard_seen = true;
  record.stop_reason = "stopped by root";
  record.ended =
      Ended{.why = {}, .exit_code = {}, .signal = 15, .at = Time(77), .wall = record.admitted_wall};
  record.stop_signal = 15;
  record.killed_at = Time(987654321);
  record.carried = {
      .refusals_of_dead = {.own_limit = 1, .last_refused_bytes = 9},
      .refusals = {.own_limit = 2, .device_full = 3, .own_part = 4, .last_refused_bytes = 8},
      .launches_of_dead = 5,
      .use_byte_seconds = 1e12,
      .use_seconds = 60.5,
      .idle = Time(42),
      .turns = Carried::Turns{.billed_ns = 6, .waited_ns = 7, .turns = 8, .overran = 9, .unused = 10},
      .lost_work = LostWork{LostWork::Cause::kNeighbour, "killed by fault of tenant x (y)"},
      .events = R"([{"at":"now","kind":"changed","text":"t"}])"};
  return record;
}

TEST(LeaseRecord, ComesBackAsItWas) {
  const LeaseRecord record = Example();
  const auto back = ParseLeaseRecord(FormatLeaseRecord(record));
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(back->id, record.id);
  EXPECT_EQ(back->uid, record.uid);
  EXPECT_EQ(back->run, record.run);
  EXPECT_EQ(back->child, record.child);
  EXPECT_EQ(back->mode, record.mode);
  EXPECT_EQ(back->shares[0].gpu, record.shares[0].gpu);
  EXPECT_EQ(back->shares[0].guaranteed_bytes, record.shares[0].guaranteed_bytes);
  EXPECT_EQ(back->shares[0].limit_bytes, record.shares[0].limit_bytes);
  EXPECT_EQ(back->shares[1].limit_bytes, record.shares[1].limit_bytes);
  EXPECT_EQ(back->peak_bytes, record.peak_bytes);
  EXPECT_EQ(back->request, record.request);
  EXPECT_EQ(back->admitted, record.admitted);
  EXPECT_EQ(back->waited_seconds, record.waited_seconds);
  EXPECT_EQ(back->guard_seen, record.guard_seen);
  EXPECT_EQ(back->stop_reason, record.stop_reason);
  ASSERT_TRUE(back->ended);
  EXPECT_FALSE(back->ended->exit_code);
  EXPECT_EQ(back->ended->signal, 15);
  EXPECT_EQ(back->ended->at, Time(77));
  EXPECT_EQ(back->ended->wall, record.ended->wall);
  EXPECT_EQ(back->stop_signal, record.stop_signal);
  EXPECT_EQ(back->killed_at, record.killed_at);
}

TEST(LeaseRecord, CarriesWhatTheHistoryWillTell) {
  const Carried was = Example().carried;
  const auto back = ParseLeaseRecord(FormatLeaseRecord(Example()));
  ASSERT_TRUE(back) << back.error().ToString();
  const Carried& is = back->carried;
  EXPECT_EQ(is.refusals_of_dead.own_limit, was.refusals_of_dead.own_limit);
  EXPECT_EQ(is.refusals.own_limit, was.refusals.own_limit);
  EXPECT_EQ(is.refusals.device_full, was.refusals.device_full);
  EXPECT_EQ(is.refusals.own_part, was.refusals.own_part);
  EXPECT_EQ(is.refusals.last_refused_bytes, was.refusals.last_refused_bytes);
  EXPECT_EQ(is.launches_of_dead, was.launches_of_dead);
  EXPECT_EQ(is.use_byte_seconds, was.use_byte_seconds);
  EXPECT_EQ(is.use_seconds, was.use_seconds);
  EXPECT_EQ(is.idle, was.idle);
  ASSERT_TRUE(is.turns);
  EXPECT_EQ(is.turns->billed_ns, was.turns->billed_ns);
  EXPECT_EQ(is.turns->waited_ns, was.turns->waited_ns);
  EXPECT_EQ(is.turns->turns, was.turns->turns);
  EXPECT_EQ(is.turns->overran, was.turns->overran);
  EXPECT_EQ(is.turns->unused, was.turns->unused);
  ASSERT_TRUE(is.lost_work);
  EXPECT_EQ(is.lost_work->cause, was.lost_work->cause);
  EXPECT_EQ(is.lost_work->why, was.lost_work->why);
  EXPECT_EQ(is.events, was.events);
}

TEST(LeaseRecord, OfBeforeFiguresWereCarriedIsRead) {
  auto json = nlohmann::json::parse(FormatLeaseRecord(Example()));
  json.erase("carried");
  const auto back = ParseLeaseRecord(json.dump());
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_FALSE(back->carried.lost_work);
}

TEST(LeaseRecord, ImpossibleFiguresAreInvalid) {
  const auto with = [](const char* path, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(FormatLeaseRecord(Example()));
    json[nlohmann::json::json_pointer(path)] = value;
    return ParseLeaseRecord(json.dump()).has_value();
  };
  EXPECT_TRUE(with("/carried/idle_ns", 0));
  EXPECT_FALSE(with("/carried/idle_ns", -1));
  EXPECT_FALSE(with("/carried/use_seconds", -1.0));
  EXPECT_FALSE(with("/carried/use_byte_seconds", 1e300));
  EXPECT_FALSE(with("/carried/turns/billed_ns", -5));
  EXPECT_FALSE(with("/carried/lost_work/cause", "the weather"));
  EXPECT_FALSE(with("/carried/events", 7));
}

TEST(LeaseRecord, AnythingElseIsInvalid) {
  const std::string good = FormatLeaseRecord(Example());
  for (const char* text :
       {"", "{}", "[]", "null", "{\"version\":2}", "nonsense", "{\"version\":1,\"id\":5}"}) {
    EXPECT_FALSE(ParseLeaseRecord(text)) << text;
  }
  // Every member is needed, and each byte lost is noticed or harmless.
  for (size_t cut = 0; cut < good.size(); ++cut) {
    std::string text = good;
    text.erase(cut, 1);
    (void)ParseLeaseRecord(text);
    EXPECT_FALSE(ParseLeaseRecord(good.substr(0, cut)));
  }
}

}  // namespace
}  // namespace gpumux::daemon
