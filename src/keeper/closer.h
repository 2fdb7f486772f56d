// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::keeper {

// Closes the descriptor in another thread: the last one of a GPU may take the
// driver seconds. The threads are started by the first call; where that fails
// the descriptor is closed here.
void CloseElsewhere(int fd);

}  // namespace gpumux::keeper
