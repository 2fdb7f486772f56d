// SPDX-License-Identifier: Apache-2.0
#include "sim/device_memory.h"
