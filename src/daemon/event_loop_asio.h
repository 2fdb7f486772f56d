// SPDX-License-Identifier: Apache-2.0
//
// The Asio inside of the event loop; heavy, so only for .cc files that need it.
#pragma once

#include <boost/asio/io_context.hpp>

#include "daemon/event_loop.h"

namespace gpumux::daemon {

struct EventLoop::Impl {
  boost::asio::io_context context{1};
};

}  // namespace gpumux::daemon
