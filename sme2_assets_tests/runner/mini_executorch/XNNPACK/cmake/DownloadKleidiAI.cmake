ExternalProject_Add(kleidiai
  URL https://example.invalid/kleidiai-0123456789.zip
  URL_HASH SHA256=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
  SOURCE_DIR "${CMAKE_BINARY_DIR}/kleidiai-source"
)
