// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux {

// Where the file of SetLogFile was moved away or removed: a new one in its place.
// Cheap; by the thread that called SetLogFile.
void FollowLogFile();

}  // namespace gpumux
