// SPDX-License-Identifier: Apache-2.0
#include "gpu/uuid.h"

namespace gpumux::gpu {

namespace {
constexpr std::string_view kGpu = "GPU-", kInstance = "MIG-";

bool DashAfter(size_t byte) { return byte == 3 || byte == 5 || byte == 7 || byte == 9; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}
}  // namespace

std::string Uuid::ToString() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(instance ? kInstance : kGpu);
  for (size_t i = 0; i < bytes.size(); ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
    if (DashAfter(i)) text += '-';
  }
  return text;
}

std::optional<Uuid> ParseUuid(std::string_view text) {
  Uuid uuid;
  uuid.instance = text.starts_with(kInstance);
  if ((!uuid.instance && !text.starts_with(kGpu)) || text.size() != kGpu.size() + 36) return std::nullopt;
  text.remove_prefix(kGpu.size());
  size_t at = 0;
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    const int high = HexDigit(text[at]);
    const int low = HexDigit(text[at + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    uuid.bytes[i] = static_cast<uint8_t>(high << 4 | low);
    at += 2;
    if (DashAfter(i) && text[at++] != '-') return std::nullopt;
  }
  return uuid;
}

}  // namespace gpumux::gpu
