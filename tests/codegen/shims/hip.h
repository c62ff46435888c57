// What HIP C++ kernels use of clang's builtin functions for AMD GPUs, for a CPU.
#pragma once
#include "threads.h"
#define amdgpu_flat_work_group_size(least, most) used
#define __builtin_amdgcn_workgroup_id_x() block_place.x
#define __builtin_amdgcn_workgroup_id_y() block_place.y
#define __builtin_amdgcn_workgroup_id_z() block_place.z
#define __builtin_amdgcn_workitem_id_x() thread_place.x
#define __builtin_amdgcn_workitem_id_y() thread_place.y
#define __builtin_amdgcn_workitem_id_z() thread_place.z
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_amdgcn_s_barrier() meet()
#define __builtin_amdgcn_sinf(turns) __builtin_sinf((turns) * 6.2831853f)
#define __builtin_amdgcn_cosf(turns) __builtin_cosf((turns) * 6.2831853f)
