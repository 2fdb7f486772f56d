// SPDX-License-Identifier: Apache-2.0
//
// What a person has chosen to see, and what keys do: a state without a terminal.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tui/columns.h"
#include "tui/model.h"

namespace gpumux::tui {

// A key as a terminal sends it, in the words of this program.
struct Key {
  enum class Code {
    kCharacter,
    kEnter,
    kEscape,
    kBackspace,
    kTab,
    kUp,
    kDown,
    kPageUp,
    kPageDown,
    kHome,
    kEnd,
    kFunction,  // `number`
    kOther
  };
  Code code = Code::kOther;
  char32_t character = 0;
  int number = 0;
};

// What the daemon shall be asked for, after a person said yes.
struct Action {
  enum class What { kStop, kSetMemory, kSetTime } what = What::kStop;
  std::vector<std::string> tenants;  // ids
  std::string value;                 // as it was typed: "10GiB:20GiB", "2h"
};

// What the screen has room for.
struct Room {
  int rows = 1;        // of the table, or lines of a page of text
  int scrollable = 0;  // lines of a page of text beyond those
};

class View {
 public:
  enum class Page { kTable, kDetail, kHelp, kSort };
  enum class Prompt { kNone, kFilter, kMemory, kTime, kConfirm };

  explicit View(bool readonly) : readonly_(readonly) {}

  // The rows as they are shown now, in order: those of `model` that pass the filter.
  std::vector<Row> Rows(const Model& model) const;
  // Keeps the selection on its tenant, or near where it was: after every sample.
  void Follow(const Model& model);

  // An action comes out once it was confirmed.
  std::optional<Action> Press(const Key& key, const Model& model, const Room& room);

  // What came of an action, shown until the next key.
  void Say(std::string message) { message_ = std::move(message); }

  Page page() const { return page_; }
  Prompt prompt() const { return prompt_; }
  // What stands in the last line while something is asked, the answer so far included.
  std::string Question() const;
  const std::string& filter() const { return filter_; }
  const std::string& message() const { return message_; }
  Column sort() const { return sort_; }
  bool descending() const { return descending_; }
  size_t sort_choice() const { return sort_choice_; }
  bool readonly() const { return readonly_; }
  bool paused() const { return paused_; }
  bool quit() const { return quit_; }
  const std::string& selected() const { return selected_; }
  // Its place among Rows().
  size_t selected_row() const { return selected_row_; }
  bool Tagged(const std::string& id) const { return tagged_.contains(id); }
  int scrolled() const { return scrolled_; }  // lines of a page of text
  // The GPU that alone is shown, by its place in the sample.
  std::optional<size_t> gpu() const { return gpu_; }

 private:
  void PressInTable(const Key& key, const Model& model, const Room& room);
  void PressLetter(char32_t letter, const Model& model);
  void PressInSort(const Key& key);
  void PressInText(const Key& key, const Model& model, const Room& room);
  std::optional<Action> PressInPrompt(const Key& key, const Model& model);
  std::optional<Action> Answer(const Key& key, const Model& model);
  void Move(const Model& model, int by);
  void SortBy(Column column);
  void Ask(Prompt prompt, const Model& model);
  void Tag(const Model& model);
  void NextGpu(const Model& model);
  void Open(Page page);

  bool readonly_;
  Page page_ = Page::kTable;
  Prompt prompt_ = Prompt::kNone;
  std::string typed_, filter_, filter_before_, message_;
  Action pending_;  // what the question on the screen is about
  std::string pending_names_;
  Column sort_ = Column::kStarted;
  bool descending_ = false;
  size_t sort_choice_ = 0;
  bool paused_ = false, quit_ = false;
  std::string selected_;
  size_t selected_row_ = 0;
  std::set<std::string> tagged_;
  int scrolled_ = 0;
  std::optional<size_t> gpu_;
};

}  // namespace gpumux::tui
