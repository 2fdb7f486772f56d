// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/ptx.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace gpumux::softgpu {

namespace {

// Comments become spaces, so that positions of everything else stay.
std::string WithoutComments(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i + 1 < out.size();) {
    if (out[i] == '/' && out[i + 1] == '/') {
      while (i < out.size() && out[i] != '\n') out[i++] = ' ';
    } else if (out[i] == '/' && out[i + 1] == '*') {
      size_t end = out.find("*/", i + 2);
      end = end == std::string::npos ? out.size() : end + 2;
      for (; i < end; ++i) {
        if (out[i] != '\n') out[i] = ' ';
      }
    } else {
      ++i;
    }
  }
  return out;
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
         c == '%' || c == '.';
}

// Words (directives, names, numbers) and single punctuation marks.
std::vector<std::string_view> Tokens(std::string_view text) {
  std::vector<std::string_view> tokens;
  for (size_t i = 0; i < text.size();) {
    if (IsSpace(text[i])) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    if (IsName(text[i]) || text[i] == '-') {
      while (end < text.size() && IsName(text[end])) ++end;
    } else if (text[i] == '"') {
      while (end < text.size() && text[end] != '"') ++end;
      end = std::min(end + 1, text.size());
    }
    tokens.push_back(text.substr(i, end - i));
    i = end;
  }
  return tokens;
}

uint64_t TypeBytes(std::string_view type) {
  static constexpr struct {
    std::string_view suffix;
    uint64_t bytes;
  } kTypes[] = {{"8", 1}, {"16", 2}, {"32", 4}, {"64", 8}, {"128", 16}};
  if (type.size() < 3 || type[0] != '.' || std::string_view("busf").find(type[1]) == std::string_view::npos)
    return 0;
  for (const auto& [suffix, bytes] : kTypes) {
    if (type.substr(2) == suffix) return bytes;
  }
  return type == ".f16x2" ? 4 : 0;
}

bool Number(std::string_view text, uint64_t* value) {
  bool negative = false;
  if (text.starts_with("-")) {
    negative = true;
    text.remove_prefix(1);
  }
  if (text.ends_with("U")) text.remove_suffix(1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X") || text.starts_with("0f") || text.starts_with("0F") ||
      text.starts_with("0d") || text.starts_with("0D")) {
    text.remove_prefix(2);  // floating-point constants are written as their bits
    base = 16;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (negative) *value = ~*value + 1;
  return true;
}

// A variable as it is declared: ".align 16 .b8 name[10][4] = {...}".
struct Variable {
  std::string_view name;
  uint64_t element = 0;
  uint64_t count = 1;
  uint64_t alignment = 0;
  size_t end = 0;  // the token behind it
};
std::optional<Variable> ReadVariable(const std::vector<std::string_view>& tokens, size_t at) {
  Variable variable;
  uint64_t lanes = 1;
  for (; at < tokens.size() && tokens[at].starts_with('.'); ++at) {
    if (tokens[at] == ".align" && at + 1 < tokens.size()) {
      if (!Number(tokens[++at], &variable.alignment)) return std::nullopt;
    } else if (tokens[at] == ".v2" || tokens[at] == ".v4") {
      lanes = tokens[at] == ".v2" ? 2 : 4;
    } else if (const uint64_t bytes = TypeBytes(tokens[at]); bytes > 0) {
      variable.element = bytes;
    }
  }
  if (at >= tokens.size() || variable.element == 0) return std::nullopt;
  variable.element *= lanes;
  variable.name = tokens[at++];
  while (at < tokens.size() && tokens[at] == "[") {
    uint64_t n = 0;
    if (at + 2 < tokens.size() && tokens[at + 2] == "]") {
      if (!Number(tokens[at + 1], &n) || (n != 0 && variable.count > (1ULL << 50) / n)) return std::nullopt;
      at += 3;
    } else if (at + 1 < tokens.size() && tokens[at + 1] == "]") {
      at += 2;  // as long as its initialiser
    } else {
      return std::nullopt;
    }
    variable.count *= n;
  }
  if (variable.alignment == 0) variable.alignment = variable.element;
  variable.end = at;
  return variable;
}

bool ReadGlobal(const std::vector<std::string_view>& tokens, size_t at, PtxModule* module) {
  const auto variable = ReadVariable(tokens, at);
  if (!variable) return false;
  PtxModule::Global global;
  global.name = variable->name;
  global.alignment = std::clamp<uint64_t>(variable->alignment, 1, 4096);
  uint64_t values = 0;
  for (size_t i = variable->end; i < tokens.size(); ++i) {
    uint64_t value = 0;
    if (!Number(tokens[i], &value)) continue;
    if (++values > (1u << 20)) return false;
    uint8_t bytes[16] = {};
    memcpy(bytes, &value, sizeof(value));
    global.initial.insert(global.initial.end(), bytes, bytes + std::min<uint64_t>(variable->element, 16));
  }
  global.bytes = std::max<uint64_t>(variable->element * variable->count, global.initial.size());
  module->globals.push_back(std::move(global));
  return true;
}

bool ReadKernel(const std::vector<std::string_view>& tokens, size_t at, PtxModule* module) {
  PtxModule::Kernel kernel;
  if (at >= tokens.size()) return false;
  kernel.name = tokens[at];
  uint64_t offset = 0;
  for (; at < tokens.size(); ++at) {
    if (tokens[at] != ".param") continue;
    // ".ptr .global .align 16" may stand between the type and the name.
    std::vector<std::string_view> parameter;
    bool pointer = false;
    for (size_t i = at + 1; i < tokens.size() && tokens[i] != "," && tokens[i] != ")"; ++i) {
      if (tokens[i] == ".ptr") pointer = true;
      if (pointer && tokens[i] == ".align") {
        ++i;
        continue;
      }
      if (pointer && tokens[i].starts_with('.')) continue;
      parameter.push_back(tokens[i]);
    }
    const auto variable = ReadVariable(parameter, 0);
    if (!variable) return false;
    const uint64_t size = variable->element * variable->count;
    offset = (offset + variable->alignment - 1) / variable->alignment * variable->alignment;
    kernel.parameters.push_back({offset, size});
    offset += size;
  }
  module->kernels.push_back(std::move(kernel));
  return true;
}

// Variables that a body declares in a state space: ".local" (of a thread) or
// ".shared" (of a block).
uint64_t DeclaredBytes(std::string_view body, std::string_view space) {
  uint64_t bytes = 0;
  for (size_t at = body.find(space); at != std::string_view::npos; at = body.find(space, at + 1)) {
    if (at > 0 && !IsSpace(body[at - 1]) && body[at - 1] != '{') continue;  // st.local
    const std::string_view rest = body.substr(at + space.size());
    if (rest.empty() || !IsSpace(rest[0])) continue;
    const auto tokens = Tokens(rest.substr(0, rest.find(';')));
    if (const auto variable = ReadVariable(tokens, 0)) bytes += variable->element * variable->count;
  }
  return bytes;
}

}  // namespace

std::optional<PtxModule> ParsePtx(std::string_view raw) {
  const std::string text = WithoutComments(raw);
  PtxModule module;
  bool version = false, target = false;
  size_t at = 0;
  while (true) {
    while (at < text.size() && IsSpace(text[at])) ++at;
    if (at >= text.size()) break;
    const std::string_view rest = std::string_view(text).substr(at);
    bool line = false;
    for (std::string_view directive : {".version", ".target", ".address_size", ".file", ".loc"}) {
      if (!rest.starts_with(directive)) continue;
      version |= directive == ".version";
      target |= directive == ".target";
      line = true;
    }
    if (line) {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (!version || !target || rest[0] == '}') return std::nullopt;
    // A statement: up to its ';', or its body if it is a function.
    size_t stop = at;
    int initialiser = 0;
    for (; stop < text.size(); ++stop) {
      if (text[stop] == ';' && initialiser == 0) break;
      if (text[stop] == '{') {
        const std::string_view head = std::string_view(text).substr(at, stop - at);
        if (head.find('=') == std::string_view::npos) break;
        ++initialiser;
      }
      if (text[stop] == '}') --initialiser;
    }
    if (stop >= text.size()) return std::nullopt;
    const auto tokens = Tokens(std::string_view(text).substr(at, stop - at));
    size_t end = stop + 1;
    if (text[stop] == '{') {
      int depth = 1;
      for (; end < text.size() && depth > 0; ++end) depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      if (depth != 0) return std::nullopt;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == ".entry") {
        if (!ReadKernel(tokens, i + 1, &module)) return std::nullopt;
        if (text[stop] == '{') {
          const std::string_view body = std::string_view(text).substr(stop, end - stop);
          module.kernels.back().local_bytes = DeclaredBytes(body, ".local");
          module.kernels.back().shared_bytes = DeclaredBytes(body, ".shared");
        } else {
          module.kernels.pop_back();  // declared, not defined
        }
        break;
      }
      if (tokens[i] == ".func") {
        module.uses_heap |= std::find(tokens.begin(), tokens.end(), "malloc") != tokens.end();
        break;
      }
      if (tokens[i] == ".global" || tokens[i] == ".const") {
        if (tokens[0] != ".extern" && !ReadGlobal(tokens, i + 1, &module)) return std::nullopt;
        break;
      }
    }
    at = end;
  }
  if (!version || !target) return std::nullopt;
  return module;
}

}  // namespace gpumux::softgpu
