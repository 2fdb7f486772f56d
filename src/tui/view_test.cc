// SPDX-License-Identifier: Apache-2.0
#include "tui/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tui/testing/scene.h"

namespace gpumux::tui {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Machine;
using testing::TenantOn;
using testing::Waiting;
using Code = Key::Code;

constexpr Room kPage{10, 12};

class Views : public ::testing::Test {
 protected:
  Views() {
    Sample sample = Machine({TenantOn("serve", 30, 40), TenantOn("Train", 50, 55), TenantOn("note", 1, 2)});
    sample.tenants[1].owner = "bob";
    sample.tenants.push_back(Waiting("late", 60));
    testing::AddStranger(sample, 812, 3);
    model_.Take(sample, 1s);
    view_.Follow(model_);
  }
  std::optional<Action> Press(Key key) { return view_.Press(key, model_, kPage); }
  std::optional<Action> Press(char32_t character) { return Press({Code::kCharacter, character}); }
  std::optional<Action> Function(int number) { return Press({Code::kFunction, 0, number}); }
  void Type(const std::string& text) {
    for (const char c : text) Press(static_cast<char32_t>(c));
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const Row& row : view_.Rows(model_)) names.push_back(row.tenant ? row.tenant->name : "(other)");
    return names;
  }
  Model model_;
  View view_{false};
};

TEST_F(Views, RowsAreInTheDaemonsOrderAtFirst) {
  EXPECT_THAT(Names(), ElementsAre("serve", "Train", "note", "late", "(other)"));
  EXPECT_EQ(view_.selected(), "t-serve");
}

TEST_F(Views, SortsByAColumnAndTheOtherWayRound) {
  Press(U'M');
  EXPECT_THAT(Names(), ElementsAre("Train", "serve", "(other)", "note", "late"));
  Press(U'I');
  EXPECT_THAT(Names(), ElementsAre("late", "note", "(other)", "serve", "Train"));
  Press(U'N');
  EXPECT_THAT(Names(), ElementsAre("(other)", "late", "note", "serve", "Train"));
  // F6, to GUAR by the arrows; what is unknown is last, whichever way.
  Function(6);
  EXPECT_EQ(view_.page(), View::Page::kSort);
  while (AllColumns()[view_.sort_choice()].column != Column::kGuaranteed) Press({Code::kDown});
  Press({Code::kEnter});
  EXPECT_THAT(Names(), ElementsAre("late", "Train", "serve", "note", "(other)"));
  Press(U'I');
  EXPECT_THAT(Names(), ElementsAre("note", "serve", "Train", "late", "(other)"));
}

TEST_F(Views, FiltersWhileItIsTyped) {
  Function(4);
  Type("TRA");
  EXPECT_THAT(Names(), ElementsAre("Train"));
  EXPECT_THAT(view_.Question(), HasSubstr("TRA"));
  Press({Code::kBackspace});
  Press({Code::kBackspace});
  Press({Code::kBackspace});
  Type("bob");  // Train's owner, and the other program's
  Press({Code::kEnter});
  EXPECT_THAT(Names(), ElementsAre("Train", "(other)"));
  // Escape while typing brings the earlier one back, and then none.
  Press(U'/');
  Type("xx");
  EXPECT_TRUE(Names().empty());
  Press({Code::kEscape});
  EXPECT_EQ(view_.filter(), "bob");
  Press({Code::kEscape});
  EXPECT_EQ(view_.filter(), "");
}

TEST_F(Views, TheSelectionStaysOnItsTenant) {
  Press({Code::kDown});
  EXPECT_EQ(view_.selected(), "t-Train");
  Press(U'M');
  EXPECT_EQ(view_.selected(), "t-Train");
  EXPECT_EQ(view_.selected_row(), 0u);
  // It ends: the one in its place is next.
  model_.Take(Machine({TenantOn("serve", 30, 40), TenantOn("note", 1, 2)}), 2s);
  view_.Follow(model_);
  EXPECT_EQ(view_.selected(), "t-serve");
  Press({Code::kEnd});
  EXPECT_EQ(view_.selected(), "t-note");
  model_.Take(Machine({}), 3s);
  view_.Follow(model_);
  EXPECT_EQ(view_.selected(), "");
  EXPECT_FALSE(Press(U'k'));
  EXPECT_EQ(view_.message(), "no tenant is selected");
}

TEST_F(Views, StopsAfterAYesAlone) {
  EXPECT_FALSE(Function(9));
  EXPECT_THAT(view_.Question(), HasSubstr("stop serve"));
  EXPECT_FALSE(Press({Code::kEnter}));
  EXPECT_EQ(view_.message(), "nothing was changed");
  EXPECT_FALSE(Press(U'k'));
  const auto action = Press(U'y');
  ASSERT_TRUE(action);
  EXPECT_EQ(action->what, Action::What::kStop);
  EXPECT_THAT(action->tenants, ElementsAre("t-serve"));
}

TEST_F(Views, WhatWasAskedForIsWhatIsStopped) {
  Press(U'k');
  // While the question stands, the selected one ends and another takes its place.
  model_.Take(Machine({TenantOn("Train", 50, 55)}), 2s);
  view_.Follow(model_);
  EXPECT_EQ(view_.selected(), "t-Train");
  EXPECT_THAT(view_.Question(), HasSubstr("stop serve"));
  const auto action = Press(U'y');
  ASSERT_TRUE(action);
  EXPECT_THAT(action->tenants, ElementsAre("t-serve"));
}

TEST_F(Views, TaggedTenantsAreStoppedTogether) {
  Press(U' ');
  Press({Code::kDown});
  Press(U' ');
  EXPECT_TRUE(view_.Tagged("t-serve"));
  EXPECT_TRUE(view_.Tagged("t-note"));
  Press(U'k');
  EXPECT_THAT(view_.Question(), HasSubstr("2 tenants (serve, note)"));
  const auto action = Press(U'y');
  ASSERT_TRUE(action);
  EXPECT_THAT(action->tenants, ElementsAre("t-serve", "t-note"));
  EXPECT_FALSE(view_.Tagged("t-serve"));
}

TEST_F(Views, SetsMemoryThatIsWrittenRightAfterAYes) {
  Function(7);
  Type("10");
  Press({Code::kEnter});
  EXPECT_THAT(view_.message(), HasSubstr("no unit"));
  EXPECT_EQ(view_.prompt(), View::Prompt::kNone);
  Press(U'm');
  Type("10GiB:20GiB");
  EXPECT_FALSE(Press({Code::kEnter}));
  EXPECT_THAT(view_.Question(), HasSubstr("10GiB:20GiB for serve"));
  const auto action = Press(U'y');
  ASSERT_TRUE(action);
  EXPECT_EQ(action->what, Action::What::kSetMemory);
  EXPECT_EQ(action->value, "10GiB:20GiB");
  Press(U't');
  Type("2h");
  Press({Code::kEnter});
  const auto time = Press(U'y');
  ASSERT_TRUE(time);
  EXPECT_EQ(time->what, Action::What::kSetTime);
}

TEST_F(Views, ReadonlyNeverActs) {
  view_ = View(true);
  view_.Follow(model_);
  const std::u32string keys = U"kmty yU ";
  for (int round = 0; round < 2; ++round) {
    for (const char32_t key : keys) EXPECT_FALSE(Press(key));
    for (int number = 1; number <= 9; ++number) EXPECT_FALSE(Function(number));
    Press({Code::kEscape});
    Press({Code::kEnter});  // the second round is in the details
  }
  Press(U'k');
  EXPECT_THAT(view_.message(), HasSubstr("read-only"));
}

TEST_F(Views, WhatIsNoTenantHasNoPromiseToChange) {
  Press({Code::kEnd});
  EXPECT_FALSE(Press(U'k'));
  EXPECT_EQ(view_.prompt(), View::Prompt::kNone);
  EXPECT_THAT(view_.message(), HasSubstr("no tenant"));
  Press({Code::kEnter});
  EXPECT_EQ(view_.page(), View::Page::kTable);
}

TEST_F(Views, DetailsCloseWhenTheTenantEnds) {
  Press({Code::kEnter});
  EXPECT_EQ(view_.page(), View::Page::kDetail);
  model_.Take(Machine({TenantOn("Train", 50, 55)}), 2s);
  view_.Follow(model_);
  EXPECT_EQ(view_.page(), View::Page::kTable);
  EXPECT_EQ(view_.message(), "the tenant has ended");
}

TEST_F(Views, PagesOfTextAreScrolledNoFurtherThanTheirEnd) {
  Function(1);
  EXPECT_EQ(view_.page(), View::Page::kHelp);
  Press({Code::kEnd});
  const int end = view_.scrolled();
  EXPECT_EQ(end, kPage.scrollable);
  Press({Code::kDown});
  EXPECT_EQ(view_.scrolled(), end);
  Press({Code::kUp});
  EXPECT_EQ(view_.scrolled(), end - 1);
  Press(U'q');
  EXPECT_EQ(view_.page(), View::Page::kTable);
  EXPECT_FALSE(view_.quit());
  Function(10);
  EXPECT_TRUE(view_.quit());
}

TEST_F(Views, AnyKeysInAnyOrderKeepItWhole) {
  // Also while tenants come and go. Fails under the sanitizers, or by an action without a yes.
  uint32_t random = 7;
  const auto next = [&](uint32_t below) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % below;
  };
  for (int i = 0; i < 20000; ++i) {
    Key key{static_cast<Code>(next(static_cast<uint32_t>(Code::kOther) + 1)), U' ' + next(0x60),
            static_cast<int>(next(13))};
    const bool asked = view_.prompt() == View::Prompt::kConfirm;
    const auto action = Press(key);
    ASSERT_TRUE(!action || (asked && (key.character == U'y' || key.character == U'Y')));
    if (i % 7 == 0) {
      std::vector<TenantSample> tenants;
      for (uint32_t n = next(5); n > 0; --n) tenants.push_back(TenantOn("n" + std::to_string(next(9)), 1, 2));
      model_.Take(Machine(tenants), std::chrono::seconds(i));
      view_.Follow(model_);
    }
    const auto rows = view_.Rows(model_);
    ASSERT_TRUE(rows.empty() || view_.selected_row() < rows.size());
  }
}

}  // namespace
}  // namespace gpumux::tui
