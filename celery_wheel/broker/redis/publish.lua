-- Puts a chunk into its lists and moves the lane's offset from `from` to `to`: both, or neither.
--
--   KEYS  1 the offset hash    then `lists` lists    then `expiring` lists
--   ARGV  1 uuid  2 epoch  3 lane field  4 failed field  5 from  6 to
--         7 refused before, JSON: row id -> reason   8 lists  9 expiring  10 broadcasts
--         then for each list: row ids "1,3,4" and their count; for each expiring list: ms;
--         for each broadcast: row id, topic, message; then the messages, list by list; last, what is kept as `since`
--
--   1 compare   2 look at every list's type   3 move the offset   4 push, expire, broadcast   5 note what failed
--
-- Step 3 is the first write, and the only one that Redis may refuse for reasons of its own (out of memory,
-- read-only, cannot persist): it raises, and nothing was done. What fails after it is the destination's fault,
-- is caught, and becomes the row's. So nothing after step 3 may raise: a script is not undone.

-- Lua passes at most about 8,000 values in one call; 500 keeps its stack small.
local SLICE = 500

local lane, failed_field, from, to = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local held = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', lane, failed_field)
local uuid, epoch, stands = held[1], held[2], held[3]

if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] or not stands then return {'missing'} end
if stands == to then return {'already', held[4] or '{}'} end
if stands > to then return {'already', '{}'} end
if stands < from then return {'rolled back', stands} end
if stands > from then return {'inside', stands} end

local refused = cjson.decode(ARGV[7])
local lists, expiring, broadcasts = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local first_ms = 11 + 2 * lists
local first_broadcast = first_ms + expiring
local first_message = first_broadcast + 3 * broadcasts

local function split(ids)
  local numbers = {}
  for id in string.gmatch(ids, '%d+') do numbers[#numbers + 1] = id end
  return numbers
end

-- A row of which one queue is no list goes to none of its queues: it can be sent again, whole, when that is mended.
local sound = true
for i = 1, lists do
  local answer = redis.pcall('TYPE', KEYS[1 + i])
  local kind = answer['ok']
  if kind ~= 'none' and kind ~= 'list' then
    sound = false
    local reason = "key '" .. KEYS[1 + i] .. "' holds a " .. (kind or answer['err'] or '?') .. ', not a list'
    for _, id in ipairs(split(ARGV[9 + 2 * i])) do refused[id] = reason end
  end
end

redis.call('HSET', KEYS[1], lane, to, failed_field, '{}', 'since' .. string.sub(lane, 5), ARGV[#ARGV])

local function push(key, messages, first, last, ids)
  for at = first, last, SLICE do
    local stop = math.min(at + SLICE - 1, last)
    local answer = redis.pcall('LPUSH', key, unpack(messages, at, stop))
    if type(answer) == 'table' then
      local numbers = type(ids) == 'table' and ids or split(ids)
      for i = at - first + 1, stop - first + 1 do refused[numbers[i]] = tostring(answer['err']) end
    end
  end
end

local at = first_message
for i = 1, lists do
  local key, ids, count = KEYS[1 + i], ARGV[9 + 2 * i], tonumber(ARGV[10 + 2 * i])
  if sound then
    push(key, ARGV, at, at + count - 1, ids)
  else
    local messages, numbers = {}, {}
    for n, id in ipairs(split(ids)) do
      if not refused[id] then
        messages[#messages + 1] = ARGV[at + n - 1]
        numbers[#numbers + 1] = id
      end
    end
    push(key, messages, 1, #messages, numbers)
  end
  at = at + count
end

for i = 0, expiring - 1 do redis.pcall('PEXPIRE', KEYS[2 + lists + i], ARGV[first_ms + i]) end

for i = 0, broadcasts - 1 do
  local b = first_broadcast + 3 * i
  local answer = redis.pcall('PUBLISH', ARGV[b + 1], ARGV[b + 2])
  if type(answer) == 'table' then refused[ARGV[b]] = tostring(answer['err']) end
end

local failed = '{}'
if next(refused) then
  failed = cjson.encode(refused)
  redis.call('HSET', KEYS[1], failed_field, failed)
end
return {'published', failed}
