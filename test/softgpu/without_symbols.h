// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpumux::test {

// Makes `dir` a software GPU whose libraries lack `names` for dlsym and for
// cuGetProcAddress alike, as an older driver's do: copies of both libraries
// beside `library` with these exports taken out, and the server. False with a
// message on stderr when a name is exported by neither, or a file resists.
bool CopySoftGpuWithout(const std::string& library, const std::string& dir,
                        const std::vector<std::string>& names);

}  // namespace gpumux::test
