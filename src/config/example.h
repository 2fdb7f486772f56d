// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpumux::config {

// A configuration file with every key, each as a comment with what it does. As
// it is it sets nothing.
std::string ExampleText();

}  // namespace gpumux::config
