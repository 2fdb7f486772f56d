// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "tui/parts.h"

namespace gpumux::tui {
namespace {

constexpr std::string_view kSoftwareGpu = " (software GPU, simulated)";
constexpr int kFewestLines = 1, kMostLines = 3;

std::string NameOf(const GpuSample& gpu, bool simulated) {
  std::string name = gpu.name.empty() ? kUnknown : gpu.name;
  if (const size_t at = name.find(kSoftwareGpu); at != std::string::npos) name.resize(at);
  // A software GPU with a real one's name must not pass for it.
  return simulated ? name + " SIM" : name;
}

const TenantGpuSample* Find(const TenantSample& tenant, const GpuSample& gpu) {
  for (const TenantGpuSample& on : tenant.gpus) {
    if (on.uuid == gpu.uuid) return &on;
  }
  return nullptr;
}

// Puts pieces of a stack one behind the other. Rounds where each ends, so that
// errors do not add up; what is there has at least one cell.
class Stack {
 public:
  Stack(Screen& screen, int x, int y, int width, uint64_t total)
      : screen_(screen), x_(x), y_(y), width_(width), total_(total) {}

  void Add(uint64_t bytes, char32_t glyph, Ink ink, bool at_least_one) {
    if (bytes == 0) return;
    sum_ += static_cast<double>(bytes);
    int end = static_cast<int>(std::lround(sum_ / static_cast<double>(total_) * width_));
    if (at_least_one) end = std::max(end, at_ + 1);
    end = std::clamp(end, at_, width_);
    screen_.Fill(x_ + at_, y_, end - at_, glyph, ink);
    at_ = end;
  }

 private:
  Screen& screen_;
  int x_, y_, width_, at_ = 0;
  uint64_t total_;
  double sum_ = 0;
};

}  // namespace

void DrawMemoryBar(Screen& screen, int x, int y, int width, const Model& model, const GpuSample& gpu) {
  if (width < 3) return;
  screen.Put(x, y, "[");
  screen.Put(x + width - 1, y, "]");
  const int inside = width - 2;
  if (!gpu.total || *gpu.total == 0) {
    screen.Put(x + 1, y, "how much it has is not known", Ink::kDim, x + 1 + inside);
    return;
  }
  screen.Fill(x + 1, y, inside, U'·', Ink::kDim);
  Stack stack(screen, x + 1, y, inside, *gpu.total);
  stack.Add(gpu.reserve.value_or(0), U'=', Ink::kDim, false);
  stack.Add(gpu.unmanaged.value_or(0), U'!', Ink::kWarning, true);
  stack.Add(gpu.unexplained.value_or(0), U'?', Ink::kWarning, false);
  for (const TenantSample& tenant : model.sample().tenants) {
    const TenantGpuSample* on = Find(tenant, gpu);
    if (!on) continue;
    const char key = model.Of(tenant.id).key;
    const bool letter = key >= 'A' && key <= 'Z';
    const uint64_t used = on->used.value_or(0), guaranteed = on->guaranteed.value_or(0);
    stack.Add(used, static_cast<char32_t>(key), Ink::kReverse, true);
    stack.Add(guaranteed > used ? guaranteed - used : 0,
              letter ? static_cast<char32_t>(key - 'A' + 'a') : U'+', Ink::kPlain, true);
  }
}

GpuPart::GpuPart(const Model& model, const View& view, int height) : model_(model) {
  const auto& gpus = model.sample().gpus;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (!view.gpu() || *view.gpu() == i) gpus_.push_back(&gpus[i]);
  }
  const int count = static_cast<int>(gpus_.size());
  lines_each_ = count == 0 ? kFewestLines : std::clamp(height / count, kFewestLines, kMostLines);
  shown_ = std::min(count, height / lines_each_);
  // A line for how many there are beside those.
  if (shown_ < count) shown_ = std::max(0, height / lines_each_ - 1);
  height_ = count == 0 ? 1 : shown_ * lines_each_ + (shown_ < count ? 1 : 0);
}

void GpuPart::Draw(Screen& screen, int y) const {
  if (gpus_.empty()) {
    screen.Put(0, y, "no GPUs", Ink::kWarning);
    return;
  }
  for (int i = 0; i < shown_; ++i) DrawOne(screen, y + i * lines_each_, *gpus_[static_cast<size_t>(i)]);
  if (const int more = static_cast<int>(gpus_.size()) - shown_; more > 0)
    screen.Put(0, y + shown_ * lines_each_, fmt::format("and {} more GPUs (g: one alone)", more), Ink::kDim);
}

void GpuPart::DrawOne(Screen& screen, int y, const GpuSample& gpu) const {
  std::string why;
  const Part held = model_.HeldOf(gpu, why);
  const std::string mode = gpu.mode.empty() ? kUnknown : gpu.mode;
  if (lines_each_ == 1) {
    const std::string left = fmt::format("{:>2} {:<9} ", gpu.label, Cut(mode, 9));
    const std::string right = fmt::format(" {}/{}/{} GiB held {}", Gib(gpu.used), Gib(gpu.guaranteed),
                                          Gib(gpu.total), Percent(held));
    const int x = screen.Put(0, y, left);
    const int bar = screen.width() - x - TextWidth(right);
    DrawMemoryBar(screen, x, y, bar, model_, gpu);
    screen.Put(x + std::max(bar, 0), y, right);
    return;
  }
  int x = screen.Put(0, y, fmt::format("GPU {}  {}", gpu.label, NameOf(gpu, model_.sample().simulated)),
                     Ink::kStrong);
  x = screen.Put(x, y, fmt::format("  {}  held {}", mode, Percent(held)));
  if (gpu.busy_ratio) x = screen.Put(x, y, fmt::format("  busy {}", Percent(gpu.busy_ratio)));
  if (gpu.other_daemon_pid) {
    screen.Put(x, y, fmt::format("  managed by another daemon (pid {})", *gpu.other_daemon_pid),
               Ink::kWarning);
  } else if (!gpu.promisable_reason.empty()) {
    screen.Put(x, y, Cut("  takes no new tenants: " + gpu.promisable_reason, screen.width() - x),
               Ink::kWarning);
  } else if (!held && !why.empty()) {
    screen.Put(x, y, Cut(": " + why, screen.width() - x), Ink::kDim);
  }
  DrawMemoryBar(screen, 0, y + 1, screen.width(), model_, gpu);
  if (lines_each_ < 3) return;
  x = screen.Put(1, y + 2,
                 fmt::format("used {}  guaranteed {}  of {} GiB  promisable {}", Gib(gpu.used),
                             Gib(gpu.guaranteed), Gib(gpu.total), Gib(gpu.promisable)));
  const std::string unmanaged = Gib(gpu.unmanaged), unexplained = Gib(gpu.unexplained);
  const std::string words = fmt::format("  unmanaged {}  unexplained {}", unmanaged, unexplained);
  const bool notable = gpu.unmanaged.value_or(0) + gpu.unexplained.value_or(0) > 64 * kMiB;
  // By their signs in the bar where the words have no room.
  screen.Put(
      x, y + 2,
      x + TextWidth(words) <= screen.width() ? words : fmt::format("  !{}  ?{}", unmanaged, unexplained),
      notable ? Ink::kWarning : Ink::kPlain);
}

}  // namespace gpumux::tui
