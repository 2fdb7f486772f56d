// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace gpumux::softgpu {

// What an event that several processes use has in common: a page of memory that
// each of them maps. Safe to use from any thread.
class SharedEvent {
 public:
  // Of this process; null: no room.
  static std::shared_ptr<SharedEvent> Create();
  // From the file of another; takes it over.
  static std::shared_ptr<SharedEvent> Open(int file, uint64_t key);
  ~SharedEvent();

  // A point in a stream was marked: its number. Complete it when it is reached.
  uint64_t Record();
  void Complete(uint64_t number);
  // The point that the event stands for now.
  uint64_t Recorded() const;
  // Whether the point was reached, or the process that marked it has ended.
  bool IsComplete(uint64_t number) const;

  int file() const { return file_; }
  uint64_t key() const { return key_; }
  void set_key(uint64_t key) { key_ = key; }
  bool imported() const { return imported_; }

 private:
  struct Page;
  SharedEvent(Page* page, int file) : page_(page), file_(file) {}
  Page* page_;
  int file_;
  uint64_t key_ = 0;
  bool imported_ = false;
};

}  // namespace gpumux::softgpu
