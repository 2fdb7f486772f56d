// SPDX-License-Identifier: Apache-2.0
//
// Kernelspecs of Jupyter: a directory each, with a kernel.json that says how a
// kernel is started.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::cli {

struct KernelSpec {
  std::string name;    // of its directory, and of the tenant that a kernel is
  std::string mem;     // as for `run`; empty: no guarantee
  std::string gpumux;  // paths of the programs
  std::string python;
  std::vector<std::string> run_options;  // further ones
};

// The content of kernel.json. Its `metadata.gpumux` says who made it.
nlohmann::ordered_json KernelJson(const KernelSpec& spec);

// Where Jupyter looks for a user's kernelspecs, by JUPYTER_DATA_DIR,
// XDG_DATA_HOME and HOME; nullptr: not set. kInvalid: none of them is.
Result<std::string> UserKernels(const char* jupyter, const char* xdg, const char* home);

// Writes DIR/NAME/kernel.json, whole or not at all. kConflict: there is a kernelspec
// which `gpumux kernelspec` did not make, and it stays as it is.
Status WriteKernel(const std::string& kernels, const KernelSpec& spec);
// kNotFound; kConflict as above. Files that others put beside kernel.json stay;
// true: there were none.
Result<bool> RemoveKernel(const std::string& kernels, const std::string& name);

struct FoundKernel {
  std::string name, path;
  nlohmann::json content() const;
  std::string text;
};
// Those that `gpumux kernelspec` made, by name. A directory that there is not has none.
std::vector<FoundKernel> KernelsIn(const std::string& kernels);

// kInvalid: Jupyter, or `run`, would not take it.
Status CheckKernelName(const std::string& name);

}  // namespace gpumux::cli
