// SPDX-License-Identifier: Apache-2.0
#include "guard/gap_window.h"

namespace gpumux::guard {

namespace {

constexpr unsigned kFirstStrict = 16;  // before anything is tried
constexpr unsigned kStrictEach = 8;    // with windows, every eighth request is strict
constexpr unsigned kWatchEach = 16;    // without
constexpr unsigned kJudgeEach = 16;    // windows
// By how much a window may lengthen a request, in percent: at the median, and of the slow ones.
constexpr uint64_t kMedianSlack = 3, kTailSlack = 5;
constexpr uint64_t kFirstBackOff = 512, kLongestBackOff = 16384;  // requests

}  // namespace

uint64_t GapWindow::Recent::Rank(unsigned percent) const {
  const unsigned kept = count < kKept ? count : kKept;
  if (kept == 0) return 0;
  uint64_t sorted[kKept];
  for (unsigned i = 0; i < kept; i++) {
    unsigned at = i;
    for (; at > 0 && sorted[at - 1] > values[i]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = values[i];
  }
  const unsigned rank = (percent * kept + 99) / 100;
  return sorted[rank > 0 ? rank - 1 : 0];
}

// By its strict requests: the end comes soon after the last launch.
bool GapWindow::IsLaunchBound() const {
  const uint64_t length = strict_.Rank(50);
  return length >= kShortest && tails_.Rank(75) * 4 <= length;
}

uint64_t GapWindow::Begin(uint64_t now) {
  begun_ = true;
  begun_at_ = last_launch_ = now;
  close_at_ = 0;
  const uint64_t number = requests_++;
  const bool learning = strict_.count < kFirstStrict;
  const bool may = !learning && number >= strict_until_ && IsLaunchBound();
  if (may && margin_ == 0) margin_ = Span() / 2 > kLeastMargin ? Span() / 2 : kLeastMargin;
  if (may && number % kStrictEach != 0 && window_ns() > 0) close_at_ = now + window_ns();
  watches_ = learning || may || number % kWatchEach == 0;
  return close_at_;
}

void GapWindow::End(uint64_t now) {
  if (!begun_ || !watches_) return;
  begun_ = false;
  const uint64_t length = now - begun_at_;
  if (IsOfAnotherKind(length)) return StartAnew();
  if (close_at_ == 0) {
    strict_.Add(length);
    spans_.Add(last_launch_ - begun_at_);
    tails_.Add(now - last_launch_);
    return;
  }
  windows_++;
  windowed_.Add(length);
  if (windows_ % kJudgeEach == 0) Judge();
}

bool GapWindow::IsOfAnotherKind(uint64_t length) const {
  return strict_.count >= kFirstStrict && length * 2 < strict_.Rank(50);
}

// What was learnt is of other requests. Where both kinds come in turn no window is right.
void GapWindow::StartAnew() {
  const bool tried = windows_ > 0;
  strict_.Clear();
  windowed_.Clear();
  spans_.Clear();
  tails_.Clear();
  if (tried) {
    GiveUp();
  } else {
    margin_ = 0;
  }
}

void GapWindow::Judge() {
  const bool slow = windowed_.Rank(50) * 100 > strict_.Rank(50) * (100 + kMedianSlack) ||
                    windowed_.Rank(95) * 100 > strict_.Rank(95) * (100 + kTailSlack);
  // Of the same margin alone, from now on.
  windowed_.Clear();
  if (!slow) {
    margin_ -= margin_ / 8;
    if (margin_ < kLeastMargin) margin_ = kLeastMargin;
    if (margin_ == kLeastMargin) back_off_ = 0;
    return;
  }
  margin_ *= 2;
  if (margin_ >= Span()) GiveUp();
}

// Windows do harm, at any margin: the next attempt is far away, since each of them is a slow request.
void GapWindow::GiveUp() {
  back_off_ = back_off_ == 0                    ? kFirstBackOff
              : back_off_ * 2 < kLongestBackOff ? back_off_ * 2
                                                : kLongestBackOff;
  strict_until_ = requests_ + back_off_;
  margin_ = 0;
}

}  // namespace gpumux::guard
