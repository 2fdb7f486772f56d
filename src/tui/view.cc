// SPDX-License-Identifier: Apache-2.0
#include "tui/view.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "base/utf8.h"

namespace gpumux::tui {
namespace {

constexpr size_t kLongestAnswer = 64;

bool Is(const Key& key, char32_t letter) {
  return key.code == Key::Code::kCharacter && key.character == letter;
}

bool IsFunction(const Key& key, int number) {
  return key.code == Key::Code::kFunction && key.number == number;
}

bool Leaves(const Key& key) {
  return key.code == Key::Code::kEscape || key.code == Key::Code::kEnter || Is(key, U'q') ||
         IsFunction(key, 10);
}

void EraseLast(std::string& text) {
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
  if (!text.empty()) text.pop_back();
}

// How far the key moves in a list; 0: it does not.
int StepOf(const Key& key, int page) {
  constexpr int kAll = 1 << 20;
  switch (key.code) {
    case Key::Code::kUp:
      return -1;
    case Key::Code::kDown:
      return 1;
    case Key::Code::kPageUp:
      return -std::max(page, 1);
    case Key::Code::kPageDown:
      return std::max(page, 1);
    case Key::Code::kHome:
      return -kAll;
    case Key::Code::kEnd:
      return kAll;
    default:
      return 0;
  }
}

const TenantSample* Find(const Model& model, const std::string& id) {
  const auto& tenants = model.sample().tenants;
  const auto it = std::find_if(tenants.begin(), tenants.end(), [&](const auto& t) { return t.id == id; });
  return it == tenants.end() ? nullptr : &*it;
}

}  // namespace

std::vector<Row> View::Rows(const Model& model) const {
  std::vector<Row> rows = AllRows(model);
  const auto& gpus = model.sample().gpus;
  std::erase_if(rows, [&](const Row& row) {
    if (!Passes(row, filter_)) return true;
    if (!gpu_ || *gpu_ >= gpus.size()) return false;
    return row.tenant ? !IsOn(*row.tenant, gpus[*gpu_]) : row.gpu != &gpus[*gpu_];
  });
  Sort(rows, sort_, descending_, model);
  return rows;
}

void View::Follow(const Model& model) {
  std::erase_if(tagged_, [&](const std::string& id) { return !Find(model, id); });
  if (gpu_ && *gpu_ >= model.sample().gpus.size()) gpu_.reset();
  const std::vector<Row> rows = Rows(model);
  const auto it = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.id == selected_; });
  if (it != rows.end())
    selected_row_ = static_cast<size_t>(it - rows.begin());
  else
    selected_row_ = std::min(selected_row_, rows.empty() ? 0 : rows.size() - 1);
  if (page_ != Page::kDetail || it != rows.end()) {
    selected_ = rows.empty() ? "" : rows[selected_row_].id;
  } else if (!Find(model, selected_)) {
    page_ = Page::kTable;
    message_ = "the tenant has ended";
    selected_ = rows.empty() ? "" : rows[selected_row_].id;
  }
}

void View::Open(Page page) {
  page_ = page;
  scrolled_ = 0;
}

std::optional<Action> View::Press(const Key& key, const Model& model, const Room& room) {
  message_.clear();
  if (prompt_ != Prompt::kNone) return PressInPrompt(key, model);
  switch (page_) {
    case Page::kTable:
      PressInTable(key, model, room);
      break;
    case Page::kSort:
      PressInSort(key);
      break;
    case Page::kDetail:
    case Page::kHelp:
      PressInText(key, model, room);
      break;
  }
  Follow(model);
  return std::nullopt;
}

void View::PressInTable(const Key& key, const Model& model, const Room& room) {
  if (const int step = StepOf(key, room.rows); step != 0) return Move(model, step);
  switch (key.code) {
    case Key::Code::kEnter:
      if (Find(model, selected_)) Open(Page::kDetail);
      return;
    case Key::Code::kEscape:
      filter_.clear();
      return;
    case Key::Code::kTab:
      return NextGpu(model);
    case Key::Code::kCharacter:
      return PressLetter(key.character, model);
    case Key::Code::kFunction:
      break;
    default:
      return;
  }
  // The numbers of htop, as far as it has the same.
  constexpr char32_t kLetterOf[] = {0, U'h', 0, U'/', U'/', 0, U'>', U'm', U't', U'k', U'q'};
  if (key.number > 0 && key.number < static_cast<int>(std::size(kLetterOf)))
    PressLetter(kLetterOf[key.number], model);
}

void View::PressLetter(char32_t letter, const Model& model) {
  switch (letter) {
    case U'q':
      quit_ = true;
      return;
    case U'h':
    case U'?':
      return Open(Page::kHelp);
    case U'/':
    case U'\\':
      return Ask(Prompt::kFilter, model);
    case U'>':
    case U'.':
      sort_choice_ = 0;
      for (size_t i = 0; i < AllColumns().size(); ++i) {
        if (AllColumns()[i].column == sort_) sort_choice_ = i;
      }
      return Open(Page::kSort);
    case U'I':
      descending_ = !descending_;
      return;
    case U'M':
      return SortBy(Column::kMemory);
    case U'P':
      return SortBy(Column::kHeld);
    case U'N':
      return SortBy(Column::kName);
    case U'T':
      return SortBy(Column::kStarted);
    case U'g':
      return NextGpu(model);
    case U'Z':
      paused_ = !paused_;
      return;
    case U' ':
      return Tag(model);
    case U'U':
      tagged_.clear();
      return;
    case U'k':
      return Ask(Prompt::kConfirm, model);
    case U'm':
      return Ask(Prompt::kMemory, model);
    case U't':
      return Ask(Prompt::kTime, model);
    default:
      return;
  }
}

void View::PressInSort(const Key& key) {
  const auto columns = AllColumns();
  if (const int step = StepOf(key, static_cast<int>(columns.size())); step != 0) {
    sort_choice_ = static_cast<size_t>(
        std::clamp(static_cast<int>(sort_choice_) + step, 0, static_cast<int>(columns.size()) - 1));
    return;
  }
  if (key.code == Key::Code::kEnter) SortBy(columns[sort_choice_].column);
  if (Leaves(key)) Open(Page::kTable);
}

void View::PressInText(const Key& key, const Model& model, const Room& room) {
  if (const int step = StepOf(key, room.rows); step != 0) {
    scrolled_ = std::clamp(scrolled_ + step, 0, std::max(0, room.scrollable));
    return;
  }
  if (Leaves(key)) return Open(Page::kTable);
  if (page_ != Page::kDetail) return;
  if (Is(key, U'k') || IsFunction(key, 9)) return Ask(Prompt::kConfirm, model);
  if (Is(key, U'm') || IsFunction(key, 7)) return Ask(Prompt::kMemory, model);
  if (Is(key, U't') || IsFunction(key, 8)) return Ask(Prompt::kTime, model);
}

void View::Move(const Model& model, int by) {
  const std::vector<Row> rows = Rows(model);
  if (rows.empty()) return;
  const int last = static_cast<int>(rows.size()) - 1;
  selected_row_ = static_cast<size_t>(std::clamp(static_cast<int>(selected_row_) + by, 0, last));
  selected_ = rows[selected_row_].id;
}

void View::SortBy(Column column) {
  descending_ = sort_ == column ? !descending_ : SpecOf(column).high_first;
  sort_ = column;
}

void View::NextGpu(const Model& model) {
  const size_t count = model.sample().gpus.size();
  const size_t next = gpu_ ? *gpu_ + 1 : 0;
  gpu_ = next < count && count > 1 ? std::optional(next) : std::nullopt;
}

void View::Tag(const Model& model) {
  if (Find(model, selected_) && tagged_.erase(selected_) == 0) tagged_.insert(selected_);
  Move(model, 1);
}

// The tenants are those of now: whatever is tagged or selected while it is asked
// does not change what is done.
void View::Ask(Prompt prompt, const Model& model) {
  if (prompt == Prompt::kFilter) {
    typed_ = filter_before_ = filter_;
    prompt_ = prompt;
    return;
  }
  if (readonly_) return Say("read-only: started with --readonly");
  pending_ = {};
  pending_.what = prompt == Prompt::kMemory ? Action::What::kSetMemory
                  : prompt == Prompt::kTime ? Action::What::kSetTime
                                            : Action::What::kStop;
  pending_names_.clear();
  for (const TenantSample& tenant : model.sample().tenants) {
    if (tagged_.empty() || page_ == Page::kDetail ? tenant.id != selected_ : !Tagged(tenant.id)) continue;
    pending_.tenants.push_back(tenant.id);
    pending_names_ += (pending_names_.empty() ? "" : ", ") + tenant.name;
  }
  if (pending_.tenants.empty())
    return Say(selected_.empty() ? "no tenant is selected" : "this is no tenant: gpumux did not start it");
  if (pending_.tenants.size() > 1)
    pending_names_ = fmt::format("{} tenants ({})", pending_.tenants.size(), pending_names_);
  typed_.clear();
  prompt_ = prompt;
}

std::string View::Question() const {
  switch (prompt_) {
    case Prompt::kNone:
      return "";
    case Prompt::kFilter:
      return "Filter (name, id, owner, state, mode, command): " + typed_;
    case Prompt::kMemory:
      return fmt::format("Memory of {} (10GiB, or guarantee:limit): {}", pending_names_, typed_);
    case Prompt::kTime:
      return fmt::format("Time limit of {} (2h, from its start): {}", pending_names_, typed_);
    case Prompt::kConfirm:
      break;
  }
  if (pending_.what == Action::What::kStop)
    return fmt::format("y: stop {} (SIGTERM, after 10 s SIGKILL); any other key: no", pending_names_);
  return fmt::format("y: {} {} for {}; any other key: no",
                     pending_.what == Action::What::kSetMemory ? "memory" : "time limit", pending_.value,
                     pending_names_);
}

std::optional<Action> View::PressInPrompt(const Key& key, const Model& model) {
  if (prompt_ == Prompt::kConfirm || key.code == Key::Code::kEnter) return Answer(key, model);
  if (key.code == Key::Code::kEscape) {
    if (prompt_ == Prompt::kFilter) filter_ = filter_before_;
    prompt_ = Prompt::kNone;
  } else if (key.code == Key::Code::kBackspace) {
    EraseLast(typed_);
  } else if (key.code == Key::Code::kCharacter && GlyphWidth(key.character) > 0 &&
             typed_.size() < kLongestAnswer) {
    typed_ += Utf8(key.character);
  }
  if (prompt_ == Prompt::kFilter) filter_ = typed_;
  Follow(model);
  return std::nullopt;
}

std::optional<Action> View::Answer(const Key& key, const Model& model) {
  const Prompt asked = prompt_;
  prompt_ = Prompt::kNone;
  if (asked == Prompt::kConfirm) {
    if (!Is(key, U'y') && !Is(key, U'Y')) {
      Say("nothing was changed");
      return std::nullopt;
    }
    tagged_.clear();
    return std::move(pending_);
  }
  if (asked == Prompt::kFilter) {
    filter_ = typed_;
    Follow(model);
    return std::nullopt;
  }
  std::string wrong;
  if (asked == Prompt::kMemory) {
    if (const auto range = ParseMemoryRange(typed_); !range) wrong = range.error().ToString();
  } else if (const auto time = ParseDuration(typed_); !time) {
    wrong = time.error().ToString();
  }
  if (!wrong.empty()) {
    Say(wrong);
    return std::nullopt;
  }
  pending_.value = typed_;
  prompt_ = Prompt::kConfirm;
  return std::nullopt;
}

}  // namespace gpumux::tui
