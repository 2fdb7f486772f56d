/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym and dlvsym as the program sees them. gpumux_guard_look_up says whether
 * the name is ours (rdx != 0: rax is the answer) or whose function to jump to
 * (rax). The jump leaves the stack as the caller made it, so that the real
 * dlsym takes the program for its caller: RTLD_NEXT depends on it.
 */
#ifndef __x86_64__
#error "the guard's look-up front exists for x86-64 only"
#endif
        .text

        .globl  dlsym
        .type   dlsym, @function
        .p2align 4
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        xorl    %edx, %edx
        call    gpumux_guard_look_up
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx
        jnz     1f
        jmp     *%rax
1:      ret
        .cfi_endproc
        .size   dlsym, .-dlsym

        .globl  dlvsym
        .type   dlvsym, @function
        .p2align 4
dlvsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        call    gpumux_guard_look_up
        movq    %rdx, %rcx
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rcx, %rcx
        jnz     2f
        jmp     *%rax
2:      ret
        .cfi_endproc
        .size   dlvsym, .-dlvsym

        .section .note.GNU-stack,"",@progbits
