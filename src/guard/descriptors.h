// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::guard {

// The daemon gets duplicates of this process's descriptors of GPUs, so that its
// work does not fall with it if it dies (docs/design/mps.md, "Deaths"). For
// tenants that are clients of MPS; for others each of these is a few loads.

// All of them, whatever was sent before: a context was made.
void SendDescriptors();
// Where the driver may have opened or closed some: if they are others than before.
void LookAtDescriptors();
// At calls that wait anyway: if the daemon asks for them, or another one answers.
void AnswerDescriptorsCall();
// In the child of a fork.
void ForgetDescriptors();

// LookAtDescriptors() at the end of a call.
struct LookAfter {
  LookAfter() = default;
  LookAfter(const LookAfter&) = delete;
  LookAfter& operator=(const LookAfter&) = delete;
  ~LookAfter() { LookAtDescriptors(); }
};

}  // namespace gpumux::guard
