// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// Bytes of the tenant's promise, from this process's side: reserve before the
// driver is called, then commit or cancel. The protocol is in
// include/gpumux/abi/pages.h; slots are those of session.h.
//
// Threads: any. Reserve() may wait for the daemon (bounded, see session.cc);
// the others never block.

// True: `bytes` may be taken. False: refused; counted with its cause.
bool Reserve(int slot, uint64_t bytes);
enum class Refusal : uint8_t { kOwnLimit, kDeviceFull, kOwnPart };
// The same without counting, where a refusal is not yet the last word. `reclaim`:
// as RequestCredit's; false where the caller has something of its own to give back.
bool TryReserve(int slot, uint64_t bytes, Refusal* refusal, bool reclaim = true);
void CountRefused(int slot, uint64_t bytes, Refusal refusal);
void Commit(int slot, uint64_t bytes);
void Cancel(int slot, uint64_t bytes);
// Gives back committed bytes.
void Release(int slot, uint64_t bytes);
// The driver took more than was reserved: charged in any case. The tenant's
// free credit may become negative, which the daemon counts as use.
void ForceCommit(int slot, uint64_t bytes);
// May a context be made, which takes `bytes` that no allocation shows? True: it is
// among those under way, until NoticeContexts. False: refused.
bool ChargeContext(int slot, uint64_t bytes);
// What was charged as `before` takes `now`; `reserved` bytes were set aside for its
// growth, and what is left of them is cancelled.
void Settle(int slot, uint64_t before, uint64_t now, uint64_t reserved);
// The driver itself said that the device is full.
void CountDeviceFull(int slot, uint64_t bytes);

}  // namespace gpumux::guard
