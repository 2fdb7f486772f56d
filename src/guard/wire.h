// SPDX-License-Identifier: Apache-2.0
//
// Frames on a connection to the daemon (gpumux/abi/session.h), and descriptors
// that outlive what the program does to those it knows.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace gpumux::guard {

// A connection to whoever listens at GPUMUX_SESSION; -1: nobody. Its reads end
// after a time in which every daemon that lives has answered.
int Connect();

// At most GPUMUX_MAX_FDS descriptors.
bool Send(int fd, uint16_t type, uint32_t id, const void* payload, uint32_t bytes, const int* fds = nullptr,
          size_t fd_count = 0);

// Receives the frame that answers `id`. Returns its type, 0 on failure.
// Descriptors beyond `max_fds` or of other frames are closed.
uint16_t Receive(int fd, uint32_t id, void* payload, uint32_t capacity, uint32_t* payload_bytes, int* fds,
                 int max_fds, int* fd_count);

// Out of the numbers that programs close or reuse.
int MoveUp(int fd);

// To notice that a descriptor was closed and its number used again; 0 if it is not open.
uint64_t InodeOf(int fd);

}  // namespace gpumux::guard
