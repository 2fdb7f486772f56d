// SPDX-License-Identifier: Apache-2.0
#include "guard/key_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gpumux::guard {
namespace {

TEST(KeyMap, AgreesWithStdMapThroughRandomHistories) {
  std::mt19937_64 random(7);
  KeyMap<uint64_t> map;
  std::map<uint64_t, uint64_t> model;
  for (int step = 0; step < 200'000; step++) {
    // Few keys, spaced as device addresses are, so that probes collide.
    const uint64_t key = (1 + random() % 4000) << 21;
    switch (random() % 3) {
      case 0: {
        const uint64_t value = random();
        uint64_t* in_map = map.Insert(key, value);
        ASSERT_NE(in_map, nullptr);
        ASSERT_EQ(*in_map, model.emplace(key, value).first->second);
        break;
      }
      case 1: {
        uint64_t erased = 0;
        auto it = model.find(key);
        ASSERT_EQ(map.Erase(key, &erased), it != model.end());
        if (it != model.end()) {
          ASSERT_EQ(erased, it->second);
          model.erase(it);
        }
        break;
      }
      default: {
        uint64_t* found = map.Find(key);
        auto it = model.find(key);
        ASSERT_EQ(found != nullptr, it != model.end());
        if (found) {
          ASSERT_EQ(*found, it->second);
        }
      }
    }
    ASSERT_EQ(map.size(), model.size());
  }
}

TEST(KeyMap, EraseIfVisitsEveryEntryAlsoWhenOthersMoveIntoItsPlace) {
  for (unsigned seed = 0; seed < 50; seed++) {
    std::mt19937_64 random(seed);
    KeyMap<int> map;
    std::map<uint64_t, int> model;
    for (int i = 0; i < 700; i++) {
      const uint64_t key = 1 + random() % 5000;
      const int value = static_cast<int>(random() % 4);
      map.Insert(key, value);
      model.emplace(key, value);
    }
    map.EraseIf([](uint64_t, int& v) { return v == 2; });
    std::erase_if(model, [](const auto& e) { return e.second == 2; });
    ASSERT_EQ(map.size(), model.size());
    for (const auto& [key, value] : model) {
      ASSERT_NE(map.Find(key), nullptr);
      ASSERT_EQ(*map.Find(key), value);
    }
  }
}

TEST(KeyMap, HasNothingForTheKeyThatIsNone) {
  KeyMap<int> map;
  map.Insert(5, 1);
  int erased = 7;
  EXPECT_EQ(map.Insert(0, 2), nullptr);
  EXPECT_EQ(map.Find(0), nullptr);
  EXPECT_FALSE(map.Erase(0, &erased));
  EXPECT_EQ(erased, 7);
  EXPECT_EQ(map.size(), 1u);
}

TEST(KeyMap, IsEmptyAfterForget) {
  KeyMap<int> map;
  map.Insert(5, 1);
  map.Forget();
  EXPECT_EQ(map.size(), 0u);
  EXPECT_EQ(map.Find(5), nullptr);
  EXPECT_NE(map.Insert(5, 2), nullptr);
}

}  // namespace
}  // namespace gpumux::guard
