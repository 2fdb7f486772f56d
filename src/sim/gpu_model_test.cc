// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu_model.h"
