// SPDX-License-Identifier: Apache-2.0
#include "guard/durations.h"

#include "guard/driver.h"

namespace gpumux::guard {

namespace {

constexpr unsigned kEntries = 4096;  // a power of two
constexpr unsigned kProbes = 16;
constexpr unsigned kFirstSamples = 3;
constexpr uint32_t kSampleAgain = 1024;  // launches
constexpr int kSlots = 32;

struct Entry {
  uint64_t key;
  uint64_t ns;
  uint32_t samples;
  uint32_t launches;  // since the last sample
};

struct Sample {
  uint64_t key;
  cuda::CUcontext context;  // of the launch
  cuda::CUcontext made_in;  // whose events these are
  cuda::CUevent begin, end;
  uint32_t state;  // atomic
};
constexpr uint32_t kFree = 0, kOpen = 1, kRecorded = 2;

struct Durations {
  Entry entries[kEntries];
  Sample samples[kSlots];
};
constinit Durations d = {};

uint32_t Get(const Sample& sample) { return __atomic_load_n(&sample.state, __ATOMIC_ACQUIRE); }
void Set(Sample& sample, uint32_t state) { __atomic_store_n(&sample.state, state, __ATOMIC_RELEASE); }

// The one that has the key, or is free for it; null where all of its places are taken.
Entry* Find(uint64_t key) {
  for (unsigned i = 0; i < kProbes; i++) {
    Entry& entry = d.entries[(key + i) & (kEntries - 1)];
    if (entry.key == key || entry.key == 0) return &entry;
  }
  return nullptr;
}

// Other work on the GPU makes a measurement longer, never shorter; and what a kernel does may grow.
void Learn(uint64_t key, uint64_t ns) {
  Entry* entry = Find(key);
  if (!entry || entry->key != key) return;
  if (entry->samples++ == 0 || ns < entry->ns) {
    entry->ns = ns;
  } else {
    const uint64_t most = 2 * entry->ns;
    entry->ns = (3 * entry->ns + (ns < most ? ns : most)) / 4;
  }
  if (entry->ns == kUnknownNs) entry->ns = 1;
}

bool MakeEvents(Sample* sample) {
  if (sample->begin && sample->made_in == sample->context) return true;
  if (sample->begin && Real().cuEventDestroy_v2) {
    Real().cuEventDestroy_v2(sample->begin);
    Real().cuEventDestroy_v2(sample->end);
  }
  sample->begin = sample->end = nullptr;
  sample->made_in = sample->context;
  if (!Real().cuEventCreate || !Real().cuEventRecord || !Real().cuEventQuery || !Real().cuEventElapsedTime)
    return false;
  if (Real().cuEventCreate(&sample->begin, 0) != cuda::CUDA_SUCCESS) {
    sample->begin = nullptr;
    return false;
  }
  if (Real().cuEventCreate(&sample->end, 0) == cuda::CUDA_SUCCESS) return true;
  if (Real().cuEventDestroy_v2) Real().cuEventDestroy_v2(sample->begin);
  sample->begin = nullptr;
  return false;
}

}  // namespace

uint64_t PredictNs(uint64_t key) {
  const Entry* entry = Find(key);
  return entry && entry->key == key ? entry->ns : kUnknownNs;
}

int ReserveSample(uint64_t key, cuda::CUcontext context) {
  Entry* entry = Find(key);
  if (!entry) return -1;
  entry->key = key;
  if (entry->samples >= kFirstSamples && ++entry->launches < kSampleAgain) return -1;
  for (int i = 0; i < kSlots; i++) {
    Sample& sample = d.samples[i];
    if (Get(sample) != kFree) continue;
    sample.context = context;
    sample.key = key;
    Set(sample, kOpen);
    entry->launches = 0;
    return i;
  }
  return -1;
}

bool StartSample(int index, cuda::CUstream stream) {
  Sample& sample = d.samples[index];
  if (MakeEvents(&sample) && Real().cuEventRecord(sample.begin, stream) == cuda::CUDA_SUCCESS) return true;
  Set(sample, kFree);
  return false;
}

void EndSample(int index, cuda::CUstream stream) {
  Sample& sample = d.samples[index];
  Set(sample, Real().cuEventRecord(sample.end, stream) == cuda::CUDA_SUCCESS ? kRecorded : kFree);
}

void TakeSamples(cuda::CUcontext context) {
  for (Sample& sample : d.samples) {
    if (Get(sample) != kRecorded || sample.context != context) continue;
    const cuda::CUresult done = Real().cuEventQuery(sample.end);
    if (done == cuda::CUDA_ERROR_NOT_READY) continue;
    float ms = 0;
    if (done == cuda::CUDA_SUCCESS &&
        Real().cuEventElapsedTime(&ms, sample.begin, sample.end) == cuda::CUDA_SUCCESS)
      Learn(sample.key, static_cast<uint64_t>(ms > 0 ? ms * 1e6F : 0));
    Set(sample, kFree);
  }
}

void ForgetSamples(cuda::CUcontext context) {
  for (Sample& sample : d.samples) {
    if (sample.made_in == context || sample.context == context) sample = {};
  }
}

void ForgetWork(uint64_t key) {
  Entry* entry = Find(key);
  if (entry && entry->key == key) *entry = {key, kUnknownNs, 0, 0};
}

void ForgetAllWork() {
  for (Entry& entry : d.entries) entry = {};
}

void ForgetDurations() { d = {}; }

}  // namespace gpumux::guard
