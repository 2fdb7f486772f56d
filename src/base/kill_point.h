// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux {

// A place at which a test may let this process die, as by kill -9: with
// GPUMUX_KILL_AT=NAME@FILE in the environment, at the first pass of the point NAME
// by whoever removes FILE first. Else nothing.
void KillPoint(const char* name);

}  // namespace gpumux
