// SPDX-License-Identifier: Apache-2.0
#include "history/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace gpumux::history {
namespace {

class HistoryStoreTest : public ::testing::Test {
 protected:
  HistoryStoreTest() {
    char name[] = "/tmp/gpumux-history.XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~HistoryStoreTest() override { std::filesystem::remove_all(dir_); }
  std::string path() const { return dir_ + "/history.db"; }

  static PastTenant Past(const std::string& id, int64_t ended_ms, const std::string& outcome = "completed",
                         double ran = 1, const std::string& owner = "anna") {
    return {.id = id,
            .name = "name-" + id,
            .uid = owner == "anna" ? 1000u : 1001u,
            .owner = owner,
            .outcome = outcome,
            .started_ms = ended_ms - static_cast<int64_t>(1e3 * ran),
            .ended_ms = ended_ms,
            .waited_seconds = ran / 10,
            .ran_seconds = ran,
            .labels = "{}",
            .record = "{\"id\":\"" + id + "\"}"};
  }
  static std::vector<std::string> Ids(const Answer& answer) {
    std::vector<std::string> ids;
    for (const auto& tenant : answer.tenants) ids.push_back(tenant.id);
    return ids;
  }

  std::string dir_;
};

using Names = std::vector<std::string>;

TEST_F(HistoryStoreTest, KeepsRowsFromOneToTheNext) {
  const PastTenant past = Past("a", 5000, "failed", 2.5);
  {
    Store store(path());
    ASSERT_TRUE(store.Put(past));
    // What is put twice is there once.
    ASSERT_TRUE(store.Put(past));
  }
  Store again(path());
  const auto found = again.Find({});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->tenants.size(), 1u);
  const PastTenant& back = found->tenants[0];
  EXPECT_EQ(back.id, "a");
  EXPECT_EQ(back.name, past.name);
  EXPECT_EQ(back.uid, past.uid);
  EXPECT_EQ(back.outcome, "failed");
  EXPECT_EQ(back.started_ms, 2500);
  EXPECT_EQ(back.ended_ms, 5000);
  EXPECT_DOUBLE_EQ(back.ran_seconds, 2.5);
  EXPECT_EQ(back.record, past.record);
  EXPECT_EQ(found->kept_since_ms, 5000);
}

TEST_F(HistoryStoreTest, FindsByEachFilterAndByAllTogether) {
  Store store(path());
  PastTenant labelled = Past("c", 3000, "completed", 3, "bea");
  labelled.labels = R"({"team":"vision","run":"7"})";
  for (const auto& past :
       {Past("a", 1000), Past("b", 2000, "failed", 2), labelled, Past("d", 4000, "failed", 4, "bea")})
    ASSERT_TRUE(store.Put(past));
  const auto ids = [&](const Query& query) { return Ids(*store.Find(query)); };
  EXPECT_EQ(ids({}), (Names{"d", "c", "b", "a"}));
  EXPECT_EQ(ids({.owner = "bea"}), (Names{"d", "c"}));
  EXPECT_EQ(ids({.name = "name-b"}), (Names{"b"}));
  EXPECT_EQ(ids({.outcome = "failed"}), (Names{"d", "b"}));
  EXPECT_EQ((ids({.label_key = "team", .label_value = "vision"})), (Names{"c"}));
  EXPECT_EQ((ids({.label_key = "team", .label_value = "speech"})), (Names{}));
  EXPECT_EQ((ids({.label_key = "team", .label_value = "vision", .uid = 1000})), (Names{}));
  EXPECT_EQ((ids({.since_ms = 2000, .until_ms = 3000})), (Names{"c", "b"}));
  EXPECT_EQ((ids({.owner = "bea", .outcome = "failed", .since_ms = 1})), (Names{"d"}));
}

TEST_F(HistoryStoreTest, PagesMeetWithoutAGapOrARowTwice) {
  Store store(path());
  Names all;
  // Three at each moment, so that pages end between equals.
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(store.Put(Past("t" + std::to_string(100 + i), 1000 * (i / 3))));
  Query query{.limit = 4};
  for (;;) {
    const auto page = store.Find(query);
    ASSERT_TRUE(page);
    for (const auto& tenant : page->tenants) all.push_back(tenant.id);
    EXPECT_EQ(page->totals.tenants, 30u) << "whatever the page";
    if (!page->more) break;
    query.before = {page->tenants.back().ended_ms, page->tenants.back().id};
  }
  EXPECT_EQ(all.size(), 30u);
  EXPECT_TRUE(std::is_sorted(all.rbegin(), all.rend()));
}

TEST_F(HistoryStoreTest, TotalsAreOfAllThatTheFiltersLetThrough) {
  Store store(path());
  for (int i = 1; i <= 100; ++i)
    ASSERT_TRUE(store.Put(Past(std::to_string(i), i, i % 4 == 0 ? "out-of-memory" : "completed", i)));
  const auto all = store.Find({.limit = 1});
  EXPECT_EQ(all->totals.tenants, 100u);
  EXPECT_EQ(all->totals.outcomes,
            (std::vector<std::pair<std::string, uint64_t>>{{"completed", 75}, {"out-of-memory", 25}}));
  EXPECT_EQ(all->totals.ran_median_seconds, 50);
  EXPECT_EQ(all->totals.ran_p95_seconds, 95);
  EXPECT_EQ(all->totals.waited_median_seconds, 5);
  const auto some = store.Find({.outcome = "out-of-memory"});
  EXPECT_EQ(some->totals.tenants, 25u);
  EXPECT_EQ(some->totals.ran_p95_seconds, 96);
  const auto none = store.Find({.owner = "nobody"});
  EXPECT_EQ(none->totals.tenants, 0u);
  EXPECT_FALSE(none->totals.ran_median_seconds);
}

TEST_F(HistoryStoreTest, ForgetsWhatEndedBefore) {
  Store store(path());
  for (int i = 1; i <= 10; ++i) ASSERT_TRUE(store.Put(Past(std::to_string(i), i)));
  EXPECT_EQ(store.Prune(6, 3)->tenants, 3u);
  EXPECT_TRUE(store.Prune(6, 1)->more);
  EXPECT_EQ(store.Prune(6, 100)->tenants, 1u);
  EXPECT_FALSE(store.Prune(6, 100)->more);
  EXPECT_EQ(store.Find({})->totals.tenants, 5u);
  EXPECT_EQ(store.Find({})->kept_since_ms, 6);
}

TEST_F(HistoryStoreTest, KeepsWhatGpusWereLikeAndTellsTheMostOfEachStretch) {
  Store store(path());
  for (int minute = 0; minute < 120; ++minute) {
    GpuSample one{.at_ms = 60'000LL * minute,
                  .gpu = "GPU-1",
                  .mode = minute < 30 ? "timeslice" : "turns",
                  .tenants = 2,
                  .guaranteed_bytes = 100,
                  .used_bytes = static_cast<uint64_t>(minute),
                  .promisable_bytes = 1000u - minute};
    if (minute >= 60) one.unmanaged_bytes = 7;
    GpuSample other = one;
    other.gpu = "GPU-2";
    other.mode = "";
    ASSERT_TRUE(store.Put({one, other}));
  }
  const auto hours = store.FindGpus(GpuQuery{.gpu = "GPU-1", .step_ms = 3'600'000});
  ASSERT_TRUE(hours);
  ASSERT_EQ(hours->size(), 2u);
  const GpuStretch& first = hours->front();
  EXPECT_EQ(first.from_ms, 0);
  EXPECT_EQ(first.modes, (std::vector<std::string>{"timeslice", "turns"}));
  EXPECT_EQ(first.samples, 60u);
  EXPECT_EQ(first.used_bytes, 59u);
  EXPECT_EQ(first.used_mean_bytes, 29u);
  EXPECT_EQ(first.promisable_bytes, 941u);
  EXPECT_FALSE(first.unmanaged_bytes) << "unknown is not 0";
  EXPECT_EQ(hours->back().unmanaged_bytes, 7u);
  const auto both = store.FindGpus(GpuQuery{.since_ms = 60'000LL * 119});
  ASSERT_EQ(both->size(), 2u);
  EXPECT_TRUE(both->back().modes.empty());
  ASSERT_TRUE(store.Prune(60'000LL * 100, 1000));
  EXPECT_EQ(store.FindGpus(GpuQuery{.gpu = "GPU-1"})->size(), 20u);
}

TEST_F(HistoryStoreTest, TakesAnyBytes) {
  Store store(path());
  PastTenant odd = Past("x", 1);
  odd.id = odd.name = odd.owner = "'; DROP TABLE tenants; --";
  ASSERT_TRUE(store.Put(odd));
  EXPECT_EQ(store.Find({.owner = odd.owner})->tenants[0].name, odd.name);
  // Labels that are no JSON match nothing, and spoil no other query.
  odd.id = "y";
  odd.labels = "no json";
  ASSERT_TRUE(store.Put(odd));
  EXPECT_EQ(store.Find({})->totals.tenants, 2u);
}

TEST_F(HistoryStoreTest, LabelsGoWithTheirTenant) {
  Store store(path());
  PastTenant old = Past("old", 1), young = Past("young", 100);
  old.labels = young.labels = R"({"team":"vision","n":7})";
  ASSERT_TRUE(store.Put(old));
  ASSERT_TRUE(store.Put(young));
  const Query query{.label_key = "team", .label_value = "vision"};
  EXPECT_EQ(store.Find(query)->totals.tenants, 2u);
  ASSERT_TRUE(store.Prune(50, 10));
  EXPECT_EQ(Ids(*store.Find(query)), Names{"young"});
  // A label that another tenant's row would find now, had it stayed.
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &db), SQLITE_OK);
  int rows = 0;
  ASSERT_EQ(
      sqlite3_exec(
          db, "SELECT * FROM labels",
          [](void* count, int, char**, char**) { return ++*static_cast<int*>(count), 0; }, &rows, nullptr),
      SQLITE_OK);
  sqlite3_close(db);
  EXPECT_EQ(rows, 1);
}

TEST_F(HistoryStoreTest, WhoDidNotSeeTheEndDoesNotOverrule) {
  Store store(path());
  ASSERT_TRUE(store.Put(Past("a", 5, "failed")));
  ASSERT_TRUE(store.Put(Past("a", 9, "unknown")));
  EXPECT_EQ(store.Find({})->tenants[0].outcome, "failed");
  ASSERT_TRUE(store.Put(Past("b", 5, "unknown")));
  ASSERT_TRUE(store.Put(Past("b", 5, "failed")));
  EXPECT_EQ(store.Find({.name = "name-b"})->tenants[0].outcome, "failed");
}

TEST_F(HistoryStoreTest, DamageInsideIsPutAsideWhenItIsMet) {
  {
    Store store(path());
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(store.Put(Past("t" + std::to_string(i), i)));
  }
  {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(path()));
    // All pages but the first, which has the layout.
    file.seekp(4096);
    for (std::streamoff at = 4096; at < bytes; ++at) file.put('\xee');
  }
  Store store(path());
  EXPECT_FALSE(store.Find({}));
  EXPECT_TRUE(store.Find({})) << "a new one";
  EXPECT_TRUE(std::filesystem::exists(path() + ".broken"));
  EXPECT_TRUE(store.Put(Past("after", 1)));
}

TEST_F(HistoryStoreTest, ABrokenFileIsPutAside) {
  std::ofstream(path()) << std::string(8192, 'x');
  Store store(path());
  EXPECT_FALSE(store.Put(Past("a", 1)));
  EXPECT_TRUE(store.Put(Past("a", 1)));
  EXPECT_TRUE(std::filesystem::exists(path() + ".broken"));
}

TEST_F(HistoryStoreTest, WhereItCannotBeWrittenItSaysSo) {
  Store store(dir_ + "/missing/history.db");
  const Status put = store.Put(Past("a", 1));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kUnavailable);
  EXPECT_NE(put.error().message.find("history.db"), std::string::npos);
}

TEST_F(HistoryStoreTest, IsNobodyElsesToRead) {
  const mode_t before = umask(0);
  Store store(path());
  ASSERT_TRUE(store.Put(Past("a", 1)));
  umask(before);
  for (const auto& file : std::filesystem::directory_iterator(dir_)) {
    EXPECT_EQ(file.status().permissions() & std::filesystem::perms(077), std::filesystem::perms::none)
        << file.path();
  }
}

}  // namespace
}  // namespace gpumux::history
