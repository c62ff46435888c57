/* Libraries on Windows: the bytes are read at once and checked as a DLL. They are loaded from a copy among temporary files, since
   the system takes two files of one name for the same library; copies of processes that are gone are deleted. */

#include "internal.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

static unsigned long load_count;

/* ---------------------------------------------------------------- bytes */

static void said_by_system(char* text, size_t size) {
  DWORD code = GetLastError();
  DWORD length = FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, code, 0, text, (DWORD)size, NULL);
  while (length && (text[length - 1] == '\n' || text[length - 1] == '\r')) text[--length] = 0;
  if (!length) snprintf(text, size, "error %lu", (unsigned long)code);
}

static tilewright_status unreadable(tilewright_error* error, const char* path) {
  char said[256];
  said_by_system(said, sizeof said);
  return tilewright_fail_(error, TILEWRIGHT_NOT_READABLE, "cannot read the library %s: %s", path, said);
}

static tilewright_status read_image(const char* path, const void* bytes, int64_t size, image* image,
                                    tilewright_error* error) {
  *image = (struct image){-1, NULL, 0, 0};
  HANDLE file = INVALID_HANDLE_VALUE;
  LARGE_INTEGER length = {.QuadPart = size};
  if (path != NULL) {
    wchar_t wide[4096];
    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, 4096)) return unreadable(error, path);
    /* Nobody may write to it while it is read. */
    file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return unreadable(error, path);
    if (!GetFileSizeEx(file, &length)) {
      CloseHandle(file);
      return tilewright_fail_(error, TILEWRIGHT_NOT_READABLE, "cannot read the library %s: it is not a file", path);
    }
  }
  char* copy = malloc(length.QuadPart ? (size_t)length.QuadPart : 1);
  uint64_t done = 0, all = (uint64_t)length.QuadPart;
  if (copy != NULL && path == NULL) memcpy(copy, bytes, (size_t)(done = all));
  while (copy != NULL && done < all) {
    DWORD count = 0, wanted = all - done > (1u << 30) ? 1u << 30 : (DWORD)(all - done);
    if (!ReadFile(file, copy + done, wanted, &count, NULL) || !count) break;
    done += count;
  }
  tilewright_status status = TILEWRIGHT_OK;
  if (copy == NULL) status = tilewright_fail_(error, TILEWRIGHT_OUT_OF_MEMORY, "no memory for the library");
  else if (done < all) status = unreadable(error, path);
  if (file != INVALID_HANDLE_VALUE) CloseHandle(file);
  if (status) {
    free(copy);
    return status;
  }
  image->bytes = (const unsigned char*)copy;
  image->size = all;
  return TILEWRIGHT_OK;
}

static void drop_image(image* image) { free((void*)image->bytes); }

/* ---------------------------------------------------------------- loading */

/* Delete copies that processes left which are gone. */
static void sweep(const wchar_t* folder) {
  wchar_t pattern[MAX_PATH + 64];
  swprintf(pattern, MAX_PATH + 64, L"%lstilewright-*.dll", folder);
  WIN32_FIND_DATAW found;
  HANDLE search = FindFirstFileW(pattern, &found);
  if (search == INVALID_HANDLE_VALUE) return;
  do {
    HANDLE owner = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, FALSE, wcstoul(found.cFileName + 11, NULL, 10));
    if (owner != NULL) {
      CloseHandle(owner);
      continue;
    }
    if (GetLastError() != ERROR_INVALID_PARAMETER) continue;
    swprintf(pattern, MAX_PATH + 64, L"%ls%ls", folder, found.cFileName);
    DeleteFileW(pattern);
  } while (FindNextFileW(search, &found));
  FindClose(search);
}

static int write_copy(const wchar_t* path, const image* image) {
  HANDLE file = CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_TEMPORARY, NULL);
  if (file == INVALID_HANDLE_VALUE) return 0;
  uint64_t done = 0;
  while (done < image->size) {
    DWORD count = 0, wanted = image->size - done > (1u << 30) ? 1u << 30 : (DWORD)(image->size - done);
    if (!WriteFile(file, image->bytes + done, wanted, &count, NULL) || !count) break;
    done += count;
  }
  DWORD problem = GetLastError();
  CloseHandle(file);
  SetLastError(problem);
  return done == image->size;
}

/* Load the image, and find a symbol in it. Libraries stay loaded. */
static tilewright_status open_library(const image* image, const char* symbol, const struct tilewright_interface** interface,
                                      const char* where, tilewright_error* error) {
  wchar_t folder[MAX_PATH + 2], path[MAX_PATH + 64];
  HMODULE handle = NULL;
  if (GetTempPathW(MAX_PATH + 1, folder)) {
    if (!load_count) sweep(folder);
    /* The counter's address, as there may be other copies of this runtime in the process. */
    swprintf(path, MAX_PATH + 64, L"%lstilewright-%lu-%llx-%lu.dll", folder, (unsigned long)GetCurrentProcessId(),
             (unsigned long long)(uintptr_t)&load_count, ++load_count);
    if (write_copy(path, image)) handle = LoadLibraryExW(path, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
  }
  FARPROC found = handle == NULL ? NULL : GetProcAddress(handle, symbol);
  if (found != NULL) {
    memcpy(interface, &found, sizeof found);
    return TILEWRIGHT_OK;
  }
  char said[256];
  said_by_system(said, sizeof said);
  if (handle == NULL) DeleteFileW(path);
  return tilewright_fail_(error, TILEWRIGHT_BAD_LIBRARY, "%s: the system cannot load the library: %s", where, said);
}

/* What an image that is loaded needs no more: nothing. Its bytes tell it from others. */
static void settle_image(image* image) { (void)image; }
